package test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// kills is how often a process is killed under load.
const kills = 5

// Kinds of buckets in the load on the broker; a bucket's name begins with its kind.
const (
	kindQuick = "quick" // acked at once
	kindSlow  = "slow"  // its handlers take 100 to 500 ms
	kindRetry = "retry" // each message fails once
	kindPause = "pause" // each message suspends its bucket once
	kindHeld  = "held"  // suspended by the operator until an instant
	kindShut  = "shut"  // suspended by the operator until he lifts it
)

var kinds = map[string]int{kindQuick: 40, kindSlow: 20, kindRetry: 5, kindPause: 5, kindHeld: 5, kindShut: 5}

// load is a flow of messages through a broker that is killed, and what the test
// knows of it. Its checks need no knowledge of what reached the broker before the
// kill: they hold either way.
type load struct {
	t     *testing.T
	lease time.Duration
	opens time.Time // when held buckets do

	mu      sync.Mutex // guards the following fields
	changed chan struct{}
	// confirmed are the messages whose send was answered with OK, acked those that a
	// handler was done with, by bucket and body.
	confirmed, acked map[string]bool
	// next is the offset that is to come for the first time in a bucket, taken how the
	// latest delivery of an offset went.
	next    map[string]int64
	taken   map[place]taken
	running int
	lifted  bool // of the shut buckets
	again   int  // deliveries that were not the first the test saw
}

type place struct {
	lite   string
	offset int64
}

// taken is a delivery: the message may not come again before the instant.
type taken struct{ before time.Time }

func newLoad(t *testing.T, lease time.Duration, opens time.Time) *load {
	return &load{
		t: t, lease: lease, opens: opens, changed: make(chan struct{}), confirmed: map[string]bool{}, acked: map[string]bool{},
		next: map[string]int64{}, taken: map[place]taken{},
	}
}

// change runs f under the lock and wakes whoever waits.
func (l *load) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// wait returns when ok, which runs under the lock, holds.
func (l *load) wait(what string, ok func() bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*enough)
	defer cancel()
	for {
		l.mu.Lock()
		done, changed := ok(), l.changed
		l.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			l.t.Fatalf("%s: not after %v", what, 2*enough)
		}
	}
}

// handle is the consumers' handler.
func (l *load) handle(ctx context.Context, m *mq.Message) mq.Verdict {
	kind, _, _ := strings.Cut(m.Lite, "-")
	at, first := l.begin(kind, m)
	v := mq.Ack()
	switch kind {
	case kindSlow:
		select {
		case <-time.After(100*time.Millisecond + rand.N(400*time.Millisecond)):
		case <-ctx.Done():
			v = mq.Retry(0)
		}
	case kindRetry:
		if first {
			v = mq.Retry(50 * time.Millisecond)
		}
	case kindPause:
		if first {
			v = mq.Suspend(400 * time.Millisecond)
		}
	}
	l.end(at, m, v)
	return v
}

// begin checks that the message may come now. first says that the test sees it for
// the first time.
func (l *load) begin(kind string, m *mq.Message) (at place, first bool) {
	at = place{m.Lite, m.Offset}
	now := time.Now()
	l.change(func() {
		l.running++
		if kind == kindHeld && now.Before(l.opens) {
			l.t.Errorf("%s/%d came %v before its bucket's suspend ends", m.Lite, m.Offset, l.opens.Sub(now))
		}
		if kind == kindShut && !l.lifted {
			l.t.Errorf("%s/%d came out of a suspended bucket", m.Lite, m.Offset)
		}
		before, seen := l.taken[at]
		if seen {
			l.again++
			if now.Before(before.before) {
				l.t.Errorf("%s/%d came again %v too early, in attempt %d", m.Lite, m.Offset, before.before.Sub(now), m.Attempt)
			}
		} else if want := l.next[m.Lite]; m.Offset != want {
			l.t.Errorf("%s/%d came, want %d: in order, and none left out", m.Lite, m.Offset, want)
		}
		first = !seen
		l.next[m.Lite] = max(l.next[m.Lite], m.Offset+1)
		// The lease began before the message was here, by less than the slack.
		l.taken[at] = taken{m.Received.Add(l.lease - slack)}
	})
	return at, first
}

func (l *load) end(at place, m *mq.Message, v mq.Verdict) {
	l.change(func() {
		l.running--
		switch v.Kind {
		case mq.VerdictAck:
			l.acked[key(m.Lite, m.Body)] = true
		case mq.VerdictRetry, mq.VerdictSuspend:
			// The broker counts from the call's arrival, which is later.
			l.taken[at] = taken{time.Now().Add(v.After)}
		case mq.VerdictReject:
		}
	})
}

func key(lite string, body []byte) string { return lite + " " + string(body) }

// send insists on one message and notes its OK.
func (l *load) send(ctx context.Context, p mq.Producer, lite, body string) error {
	_, err := insist(ctx, p, lite, []byte(body))
	if err == nil {
		l.change(func() { l.confirmed[key(lite, []byte(body))] = true })
	}
	return err
}

// produce keeps messages flowing into all buckets until ctx ends: as fast as the
// broker confirms them into the quick ones, at a pace that handlers can keep into
// the others.
func (l *load) produce(ctx context.Context, p mq.Producer) *sync.WaitGroup {
	var wg sync.WaitGroup
	quick := bucketsOf(kindQuick)
	const writers = 4
	for w := range writers {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_ = l.send(ctx, p, quick[(i*writers+w)%len(quick)], fmt.Sprint(w, "-", i)) // fails at the end only
			}
		})
	}
	for _, kind := range []string{kindSlow, kindRetry, kindPause, kindHeld, kindShut} {
		for _, name := range bucketsOf(kind) {
			wg.Go(func() {
				tick := time.NewTicker(600 * time.Millisecond)
				defer tick.Stop()
				for i := 0; ctx.Err() == nil; i++ {
					_ = l.send(ctx, p, name, fmt.Sprint(i))
					select {
					case <-tick.C:
					case <-ctx.Done():
					}
				}
			})
		}
	}
	return &wg
}

func bucketsOf(kind string) []string {
	names := make([]string, kinds[kind])
	for i := range names {
		names[i] = fmt.Sprintf("%s-%02d", kind, i)
	}
	return names
}

// No message that was confirmed is lost, none that is out is handed out again before
// its lease ends, suspends hold, and every bucket keeps its order.
func TestKillBrokerUnderLoad(t *testing.T) {
	const lease = 10 * time.Second
	n := startBroker(t, program)
	l := newLoad(t, lease, time.Now().Add(15*time.Second))
	for _, name := range bucketsOf(kindHeld) {
		run(t, "suspends", "set", name, "--until", l.opens.Format(time.RFC3339Nano), "--admin", n.admin)
	}
	for _, name := range bucketsOf(kindShut) {
		run(t, "suspends", "set", name, "--for", "1h", "--admin", n.admin)
	}
	stop := n.consume(3, mq.Options{Workers: 64, Invisible: lease}, l.handle)
	p := n.producer()
	producing, endProducing := context.WithCancel(t.Context())
	defer endProducing()
	producers := l.produce(producing, p)

	for range kills {
		var before int
		l.change(func() { before = len(l.confirmed) })
		l.wait("the load does not flow", func() bool { return len(l.confirmed) >= before+500 && l.running > 0 })
		n.kill()
		n.restart()
	}
	endProducing()
	producers.Wait()

	// The last message of each bucket: when it is done, all before it are.
	for kind := range kinds {
		for _, name := range bucketsOf(kind) {
			must(t, l.send(t.Context(), p, name, "last"))
		}
	}
	l.change(func() { l.lifted = true })
	for _, name := range bucketsOf(kindShut) {
		run(t, "suspends", "lift", name, "--admin", n.admin)
	}
	l.wait("not all that was confirmed was delivered", func() bool { return len(l.missing()) == 0 })
	stop()
	t.Logf("%d messages were confirmed, %d deliveries were not the first", len(l.confirmed), l.again)
	if l.again == 0 {
		t.Error("no message came twice, though some were told to")
	}
	if queued := n.queued(); queued != 0 {
		t.Errorf("%d messages are left", queued)
	}
	if dead := n.deadLetters(); len(dead) != 0 {
		t.Errorf("%d dead letters, the first %+v", len(dead), dead[0])
	}
}

// missing are confirmed messages that no handler was done with. REQUIRES: mu.
func (l *load) missing() []string {
	return slices.DeleteFunc(slices.Collect(maps.Keys(l.confirmed)), func(k string) bool { return l.acked[k] })
}

// Every request that was confirmed reaches the model whatever happens to the
// consumers, and none reaches it again before its lease ends.
func TestKillConsumerUnderLoad(t *testing.T) {
	const lease, users = 5 * time.Second, 30
	n := startBroker(t, program)
	models := newStub(t)
	for i := range users {
		models.AddRule(mockmodel.Rule{User: userName(i), Apply: func(b *mockmodel.Behaviour) {
			b.Delay = mockmodel.Duration(100*time.Millisecond + time.Duration(i)*400*time.Millisecond/users)
		}})
	}
	config := filepath.Join(t.TempDir(), "penstock.yaml")
	must(t, os.WriteFile(config, []byte("models:\n  - {name: "+model+", url: \""+models.url+"\"}\n"), 0o600))
	startConsumer := func() *process {
		return start(t, "consumer", "--config", config, "--broker", n.grpc, "--nats-url", "nats://"+n.nats, "--data", t.TempDir(),
			"--admin", "127.0.0.1:0", "--invisible", lease.String(), "--workers", "32", "--log-level", "warn")
	}
	pool := startConsumer()

	p := n.producer()
	producing, endProducing := context.WithCancel(t.Context())
	defer endProducing()
	var producers sync.WaitGroup
	var mu sync.Mutex
	confirmed := map[string]string{} // hash of the body → what it is; guarded by mu
	for i := range users {
		producers.Go(func() {
			tick := time.NewTicker(500 * time.Millisecond)
			defer tick.Stop()
			for j := 0; producing.Err() == nil; j++ {
				name := fmt.Sprint(userName(i), "/", j)
				body, err := sendRequest(producing, p, userName(i), name)
				if err == nil {
					mu.Lock()
					confirmed[hashOf(body)] = name
					mu.Unlock()
				}
				select {
				case <-tick.C:
				case <-producing.Done():
				}
			}
		})
	}
	for range kills {
		answered := models.Stats().Answered
		models.wait("requests do not flow", func(s mockmodel.Stats) bool { return s.Answered >= answered+50 && s.Open >= 3 })
		pool.kill()
		pool = startConsumer()
	}
	endProducing()
	producers.Wait()

	models.waitFor(2*enough, "not all that was confirmed was answered", func(mockmodel.Stats) bool {
		left := maps.Clone(confirmed)
		for _, c := range models.Calls(0) {
			if c.State == mockmodel.StateAnswered {
				delete(left, c.BodyHash)
			}
		}
		return len(left) == 0
	})
	if code := pool.stop(); code != 0 {
		t.Errorf("the consumer stopped with status %d", code)
	}
	latest, again := map[string]mockmodel.Call{}, 0
	for _, c := range models.Calls(0) {
		if last, ok := latest[c.BodyHash]; ok {
			again++
			// Its lease began before the first call, by less than the slack.
			if gap := c.Began.Sub(last.Began); gap < lease-slack {
				t.Errorf("%s reached the model again after %v, its lease is %v; first call %+v, second %+v", confirmed[c.BodyHash], gap, lease, last, c)
			}
		}
		latest[c.BodyHash] = c
	}
	t.Logf("%d requests were confirmed, %d came again", len(confirmed), again)
	if again == 0 {
		t.Error("no request came again, though consumers were killed while some ran")
	}
	if queued := n.queued(); queued != 0 {
		t.Errorf("%d messages are left", queued)
	}
}

func userName(i int) string { return fmt.Sprintf("user-%02d", i) }

// sendRequest sends a chat completion as the gateway does, for nobody who waits.
func sendRequest(ctx context.Context, p mq.Producer, user, text string) (body string, err error) {
	name, err := lite.Encode(lite.Cell{User: user, Model: model})
	if err != nil {
		return "", err
	}
	body = fmt.Sprintf(`{"model":%q,"user":%q,"messages":[{"role":"user","content":%q}]}`, model, user, text)
	_, err = p.Send(ctx, mq.Outgoing{
		Topic: topic, Lite: name, Body: []byte(body),
		Properties: reply.Request{User: user, Model: model, Path: "/v1/chat/completions"}.Properties(),
	})
	return body, err
}

func hashOf(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}
