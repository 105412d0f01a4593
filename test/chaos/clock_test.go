package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
)

const (
	clockUser  = "alice"
	clockLease = 3 * time.Second
	clockHold  = 2 * time.Second
	clockStep  = time.Hour
	// clockDrain bounds the time after the last step: a lease or hold that lasts for a step is far beyond it.
	clockDrain = 30 * time.Second
)

// steppedClock is the clock of a machine whose time of day is set.
type steppedClock struct {
	begin  time.Time
	offset atomic.Int64 // of the wall clock, in nanoseconds
}

func (c *steppedClock) read() broker.Reading {
	return broker.Reading{Wall: time.Now().Round(0).Add(time.Duration(c.offset.Load())), Mono: time.Since(c.begin)}
}

// clockLoad is a broker in this process with senders and a consumer.
type clockLoad struct {
	t    *testing.T
	j    *journal
	b    *broker.Broker
	next atomic.Int64
}

// clockSteps sets the clock of a broker back and forth by an hour while it works. Leases, holds and limits go by the time
// that passes and not by the time of day.
func clockSteps(t *testing.T, rng *rand.Rand) tally {
	t.Helper()
	var sum tally
	clock := &steppedClock{begin: time.Now()}
	limits, err := policy.Parse([]byte(policyText))
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.Open(broker.Options{
		Dir: t.TempDir(), Clock: clock.read, Policy: limits,
		Topics: []broker.TopicConfig{{Name: messageTopic}},
		Groups: []broker.GroupConfig{{Name: messageGroup, Topic: messageTopic, Wildcard: true, InFlight: 4}},
	})
	if err != nil {
		t.Fatal(err)
	}
	l := &clockLoad{t: t, j: newJournal(clockLease), b: b}
	l.j.h.messageLease = clockLease
	l.j.h.limits[columnPaced] = limit{perSecond: pacedPerSecond, burst: 1}
	err = b.SyncSubscription(t.Context(), broker.SyncRequest{Topic: messageTopic, Group: messageGroup, Client: consumerID, Action: dispatch.CompleteAdd})
	if err != nil {
		t.Fatal(err)
	}
	sending, stopSending := context.WithCancel(t.Context())
	consuming, stopConsuming := context.WithCancel(t.Context())
	defer stopSending()
	defer stopConsuming()
	var senders, consumers sync.WaitGroup
	for column, between := range map[string]time.Duration{columnOpen: 60 * time.Millisecond, columnPaced: 220 * time.Millisecond} { // the rate lets one through each 125 ms
		senders.Go(func() {
			for pause(sending, rand.N(between)) {
				l.send(column, time.Time{})
			}
		})
	}
	for range 2 {
		consumers.Go(func() { l.consume(consuming) })
	}

	offsets := []time.Duration{-clockStep, clockStep, 0, clockStep, -clockStep, 0}
	rng.Shuffle(len(offsets), func(i, j int) { offsets[i], offsets[j] = offsets[j], offsets[i] })
	for i, offset := range offsets {
		l.hold(fmt.Sprintf("%s-%d", columnHeld, i))
		pause(t.Context(), 200*time.Millisecond)
		t.Logf("the clock is set to the right time plus %v", offset)
		clock.offset.Store(int64(offset))
		sum.damages++
		pause(t.Context(), 300*time.Millisecond+time.Duration(rng.Int64N(int64(time.Second))))
	}
	stopSending()
	senders.Wait()
	for end := time.Now().Add(clockDrain); l.left() > 0 && time.Now().Before(end); {
		pause(t.Context(), 100*time.Millisecond)
	}
	stopConsuming()
	consumers.Wait()
	if err := b.Close(); err != nil {
		l.j.find(ruleState, "broker", "close: %v", err)
	}
	return conclude(t, l.j, sum)
}

// send stores a message for a column.
func (l *clockLoad) send(column string, notBefore time.Time) {
	name, err := lite.Encode(lite.Cell{User: clockUser, Model: column})
	if err != nil {
		l.t.Error(err)
		return
	}
	id := fmt.Sprintf("%s-%d", column, l.next.Add(1))
	r := l.j.request(id, column, notBefore)
	_, err = l.b.Send(context.Background(), messageTopic, []broker.Message{{Lite: name, ID: id, Body: []byte(id)}})
	if err != nil {
		l.j.end(r, outcomeRefused, "%v", err)
		l.j.find(ruleState, id, "send: %v", err)
		return
	}
	l.j.change(func() { r.accepted = true; l.j.message(id).sent = true })
}

// hold holds a column and stores a message in it.
func (l *clockLoad) hold(column string) {
	target := suspend.Target{Scope: suspend.Column, Name: column}
	until := time.Now().Add(clockHold) // before the call, so that the hold ends no earlier
	if _, err := l.b.HoldFor(context.Background(), messageTopic, messageGroup, target, clockHold, "chaos", "test"); err != nil {
		l.t.Error(err)
		return
	}
	l.send(column, until)
}

// consume receives and acks until ctx ends, but for a small share whose lease it lets end.
func (l *clockLoad) consume(ctx context.Context) {
	for ctx.Err() == nil {
		asked := time.Now()
		got, err := l.b.Receive(ctx, broker.ReceiveRequest{
			Topic: messageTopic, Group: messageGroup, Client: consumerID, Max: 4, Invisible: clockLease, Wait: time.Second,
		})
		if err != nil && ctx.Err() == nil {
			l.j.find(ruleState, "broker", "receive: %v", err)
			return
		}
		for _, d := range got {
			l.handle(d, asked)
		}
	}
}

func (l *clockLoad) handle(d broker.Delivery, asked time.Time) {
	id, first := string(d.Body), false
	l.j.callEnded(l.j.called(id, ""), true, 0)
	l.j.change(func() {
		m := l.j.message(id)
		first = len(m.deliveries) == 0
		m.deliveries = append(m.deliveries, delivery{asked, time.Now()})
	})
	if first && rand.N(10) == 0 {
		return
	}
	errs, err := l.b.Ack(context.Background(), messageTopic, messageGroup, []string{d.Handle})
	if err = errors.Join(append(slices.Clone(errs), err)...); err != nil {
		l.j.find(ruleState, id, "ack within its lease: %v", err)
		return
	}
	l.j.change(func() {
		l.j.message(id).acked = time.Now()
		r := l.j.h.requests[id]
		r.outcome, r.ended = outcomeAnswered, time.Now()
	})
}

func (l *clockLoad) left() (n int) {
	l.j.change(func() {
		for _, m := range l.j.h.messages {
			if m.acked.IsZero() {
				n++
			}
		}
	})
	return n
}
