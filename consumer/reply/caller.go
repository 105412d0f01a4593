package reply

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// CallerState is the state of a request's caller, as its gateway reports it.
type CallerState uint8

// States of a caller.
const (
	// CallerUnknown: no answer came in time. NATS or the gateway is slow or down, or the gateway does not know the question.
	CallerUnknown CallerState = iota
	// CallerWaits: the caller waits and has received no byte of an answer.
	CallerWaits
	// CallerBegun: the caller has received bytes of an unfinished answer. A second answer would not fit the first.
	CallerBegun
	// CallerGone: the caller has left, or its answer has ended.
	CallerGone
	// CallerAbsent: NATS has reported for absentFor that the gateway has no subscription. The gateway was killed, or NATS
	// has lost it. A request that is not run for this reason must be passed to Drop.
	CallerAbsent
)

// The question is a NATS request on the reply subject of a message, with this frame; the answer is one of the words below.
// Frames and questions share a subject so that the gateway that gets the frames also answers, and so that NATS itself
// reports a missing gateway. An older gateway drops the question, as it drops every frame of an unknown kind.
const (
	askFrame  = "ask 0 0"
	wordWaits = "waits"
	wordBegun = "begun"
	wordGone  = "gone"
)

const (
	// askTry bounds the wait for one answer.
	askTry = 250 * time.Millisecond
	// askPause is the time between two questions.
	askPause = 250 * time.Millisecond
	// absentFor is the time for which NATS must report that a gateway has no subscription before its callers count as absent.
	// A gateway whose connection broke is back in a second or two.
	absentFor = 5 * time.Second
	// absentLapse is the time without a report after which the evidence of an absence is dropped.
	absentLapse = 2 * time.Second
	// absentMax bounds the remembered absent gateways: any producer can name one.
	absentMax = 1024
)

// Callers asks gateways whether the caller of a request still waits. It remembers the gateways without a subscription, so
// that a killed gateway costs its requests one wait of absentFor in all. It is the pool's half. Safe for concurrent use.
type Callers struct {
	nc *nats.Conn

	mu     sync.Mutex // guards the following field
	absent map[string]absence

	missed missed
}

// absence is the evidence that a gateway does not run.
type absence struct {
	since, last time.Time
	reconnects  uint64 // of our own connection: after a reconnect the server may not know the gateway yet
}

// NewCallers returns a Callers that asks over nc. The caller keeps nc open.
func NewCallers(nc *nats.Conn) *Callers {
	return &Callers{nc: nc, absent: make(map[string]absence), missed: missed{wake: make(chan struct{}, 1)}}
}

// Ask returns the state of the caller that waits on the reply subject of a request. Without an answer it asks again until
// patience is over or ctx ends; then the state is CallerUnknown. While NATS reports that the gateway has no subscription,
// Ask continues beyond patience, for absentFor at most.
func (c *Callers) Ask(ctx context.Context, subject string, patience time.Duration) CallerState {
	for asked := time.Now(); ctx.Err() == nil; {
		state, err := c.once(ctx, subject)
		now := time.Now()
		switch {
		case err == nil:
			c.present(gatewayOf(subject))
			return state
		case errors.Is(err, nats.ErrNoResponders):
			if c.isGone(gatewayOf(subject), now) {
				return CallerAbsent
			}
		case now.Sub(asked) >= patience:
			return CallerUnknown
		}
		pause := time.NewTimer(askPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
	return CallerUnknown
}

var errNotConnected = errors.New("reply: not connected")

func (c *Callers) once(ctx context.Context, subject string) (CallerState, error) {
	if !c.nc.IsConnected() {
		return CallerUnknown, errNotConnected // the client would only buffer the question
	}
	ctx, cancel := context.WithTimeout(ctx, askTry)
	defer cancel()
	m, err := c.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: subject, Header: nats.Header{headerFrame: {askFrame}}})
	if err != nil {
		return CallerUnknown, err
	}
	switch string(m.Data) {
	case wordWaits:
		return CallerWaits, nil
	case wordBegun:
		return CallerBegun, nil
	case wordGone:
		return CallerGone, nil
	}
	return CallerUnknown, errFrame
}

func (c *Callers) present(gateway string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.absent, gateway)
}

// isGone notes that NATS found no subscription of a gateway at now, and reports whether that has lasted for absentFor.
func (c *Callers) isGone(gateway string, now time.Time) bool {
	reconnects := c.nc.Stats().Reconnects
	c.mu.Lock()
	defer c.mu.Unlock()
	a, known := c.absent[gateway]
	if !known || now.Sub(a.last) > absentLapse || a.reconnects != reconnects {
		if !known && len(c.absent) >= absentMax {
			c.dropOldestLocked()
		}
		a = absence{since: now, reconnects: reconnects}
	}
	a.last = now
	c.absent[gateway] = a
	return now.Sub(a.since) >= absentFor
}

func (c *Callers) dropOldestLocked() {
	oldest, at := "", time.Time{}
	for gateway, a := range c.absent {
		if at.IsZero() || a.last.Before(at) {
			oldest, at = gateway, a.last
		}
	}
	delete(c.absent, oldest)
}

// gatewayOf returns the gateway in a reply subject; see isReplySubject.
func gatewayOf(subject string) string {
	rest := strings.TrimPrefix(subject, replyPrefix+".")
	gateway, _, _ := strings.Cut(rest, ".")
	return gateway
}

// answerAsk answers m if it is a question for a caller, and reports whether it was one.
func (b *Inbox) answerAsk(m *nats.Msg) bool {
	if m.Reply == "" || m.Header.Get(headerFrame) != askFrame {
		return false
	}
	b.mu.Lock()
	s := b.streams[m.Subject[len(b.prefix):]]
	b.mu.Unlock()
	word := wordGone
	if s != nil {
		word = s.callerWord()
	}
	_ = m.Respond([]byte(word)) // if the connection is gone, the asker runs into its timeout
	return true
}

func (s *Stream) callerWord() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || s.order.done:
		return wordGone
	case s.order.begun:
		return wordBegun
	}
	return wordWaits
}
