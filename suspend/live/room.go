package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/penstockmq/penstock/suspend/signal"
)

// Displaced counts the alarms that were displaced by other alarms.
func (s *Signals) Displaced() int64 { return s.displaced.Load() }

// countLocked updates the counts of alarms.
func (s *Signals) countLocked(sig signal.Signal, n int) {
	if sig.Kind != signal.Alarm {
		return
	}
	if !sig.Proven() {
		s.unproven += n
	}
	if s.alarms[sig.Sender] += n; s.alarms[sig.Sender] == 0 {
		delete(s.alarms, sig.Sender)
	}
}

// makeRoom makes room for one more signal within the bounds, or returns ErrTooMany.
//
// An address without a proof may belong to any host. So a new alarm of an address displaces its own oldest alarm, and if
// necessary the oldest of all such alarms: refusing it would let the first addresses keep all later ones out. A proven
// sender is refused at its bound: each of its alarms is taken to be true, and none may open a column before its time.
func (s *Signals) makeRoom(ctx context.Context, key string, sig signal.Signal) error {
	for { // terminates: each round removes a signal, finds room, or fails
		victim, was, err := s.room(time.Now(), key, sig)
		if err != nil || victim == "" {
			return err
		}
		err = s.bucket.kv.Purge(ctx, victim, jetstream.LastRevision(was.revision))
		if err != nil && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
			return fmt.Errorf("publish signal: make room: %w", err)
		}
		s.mu.Lock()
		if s.stored[victim] == was { // a signal published meanwhile arrives through the watcher
			s.setLocked(victim, was.signal, 0)
		}
		s.mu.Unlock()
		if err == nil && !was.signal.Ended(time.Now()) {
			s.displaced.Add(1)
		}
	}
}

// room returns the key of the signal to remove before sig may come; none if there is room.
func (s *Signals) room(now time.Time, key string, sig signal.Signal) (victim string, was stored, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.stored[key]; there {
		return "", stored{}, nil
	}
	ofSender := s.alarms[sig.Sender]
	fromSender := func(o signal.Signal) bool { return o.Kind == signal.Alarm && o.Sender == sig.Sender }
	unproven := func(o signal.Signal) bool { return !o.Proven() }
	gives, what, most := unproven, "signals are in force", MaxSignals
	switch {
	case sig.Kind == signal.Alarm && sig.Proven() && ofSender >= MaxOfSender:
		over := func(o signal.Signal) bool { return fromSender(o) && o.Ended(now) }
		gives, what, most = over, "alarms of this sender are in force", MaxOfSender
	case !sig.Proven() && ofSender >= MaxOfAddress:
		gives = fromSender
	case !sig.Proven() && s.unproven >= MaxUnproven:
	case len(s.stored) >= MaxSignals:
	default:
		return "", stored{}, nil
	}
	for k, e := range s.stored {
		if gives(e.signal) && (victim == "" || e.before(was, now)) {
			victim, was = k, e
		}
	}
	if victim == "" {
		return "", stored{}, fmt.Errorf("%w: %d %s, the maximum", ErrTooMany, most, what)
	}
	return victim, was, nil
}

// before is the order of removal: signals that have ended first, then those renewed longest ago.
func (e stored) before(o stored, now time.Time) bool {
	if over := e.signal.Ended(now); over != o.signal.Ended(now) {
		return over
	}
	return e.revision < o.revision
}
