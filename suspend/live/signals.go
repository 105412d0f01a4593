package live

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/signal"
)

const (
	signalBucket = "PENSTOCK_SIGNALS"
	// MaxSignals bounds the signals in force, of all targets and sources.
	MaxSignals = 10_000
	// MaxOfSender bounds the alarms of one proven sender.
	MaxOfSender = 5_000
	// MaxOfAddress bounds the alarms of one address without a proof, MaxUnproven those of all such addresses together. At
	// the bound, a new alarm displaces the oldest of them.
	MaxOfAddress = 1_000
	MaxUnproven  = 2_000
	// keepEnded is how long a signal stays in the bucket after its end; markerAge is how long its marker does.
	keepEnded = time.Minute
	markerAge = 10 * time.Minute
	// markersEvery is after how many ticks the markers are cleared away: an hour.
	markersEvery = int(time.Hour / tickEvery)
)

// ErrTooMany: a bound is reached, and no signal can be displaced.
var ErrTooMany = errors.New("too many signals")

// Signals follows the signals in force.
type Signals struct {
	bucket *bucket

	mu     sync.Mutex // guards the following fields
	stored map[string]stored
	// alarms counts the alarms by sender, unproven the alarms without a proof.
	alarms   map[string]int
	unproven int
	subs     map[*subscription]bool

	displaced atomic.Int64

	closing   chan struct{} // closed by Close
	closeOnce sync.Once

	ticks int // owned by Run
}

// stored is a signal as it is in the bucket.
type stored struct {
	signal   signal.Signal
	revision uint64
}

// OpenSignals makes the bucket if it does not exist, and reads the signals in force. They are followed while Run runs.
func OpenSignals(ctx context.Context, nc *nats.Conn, opts Options) (*Signals, error) {
	b, err := openBucket(ctx, nc, jetstream.KeyValueConfig{
		Bucket: signalBucket, Description: "Penstock's load signals", History: 1, MaxValueSize: signal.MaxBytes,
	}, opts)
	if err != nil {
		return nil, err
	}
	s := &Signals{
		bucket: b, stored: make(map[string]stored), alarms: make(map[string]int), subs: make(map[*subscription]bool), closing: make(chan struct{}),
	}
	entries, err := b.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	s.whole(entries)
	return s, nil
}

// Publish sets the signal of its source for its target, in all processes. At a bound, an alarm without a proof is
// displaced. Processes that publish at the same time may exceed a bound by their number. Errors: signal.ErrInvalid, ErrTooMany,
// ErrDisconnected.
func (s *Signals) Publish(ctx context.Context, sig signal.Signal) error {
	value, err := encodeSignal(sig)
	if err != nil {
		return err
	}
	key := keyOf(sig.Target, sig.Source)
	if err := s.bucket.writable(); err != nil {
		return err
	}
	if err := s.makeRoom(ctx, key, sig); err != nil {
		return err
	}
	if _, err := s.bucket.kv.Put(ctx, key, value); err != nil {
		return fmt.Errorf("publish signal: %w", err)
	}
	return nil
}

// Clear takes back what a source said of a target. That there was nothing is no error.
func (s *Signals) Clear(ctx context.Context, target suspend.Target, source string) error {
	if err := s.bucket.writable(); err != nil {
		return err
	}
	key := keyOf(target, source)
	_, err := s.bucket.kv.Get(ctx, key) // a marker for what was never there would stay for nothing
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err == nil {
		err = s.bucket.kv.Purge(ctx, key)
	}
	if err != nil {
		return fmt.Errorf("clear signal: %w", err)
	}
	return nil
}

// All are the signals in force by target and source, stale ones included and those that have ended left out.
func (s *Signals) All() []signal.Signal {
	now := time.Now()
	s.mu.Lock()
	all := make([]signal.Signal, 0, len(s.stored))
	for _, e := range s.stored {
		if !e.signal.Ended(now) {
			all = append(all, e.signal)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b signal.Signal) int {
		return cmp.Or(cmp.Compare(a.Target.Scope, b.Target.Scope), cmp.Compare(a.Target.Name, b.Target.Name), cmp.Compare(a.Source, b.Source))
	})
	return all
}

// Get is what a source says of a target.
func (s *Signals) Get(target suspend.Target, source string) (signal.Signal, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.stored[keyOf(target, source)]
	return e.signal, ok
}

// Close ends Run. It may be called more than once, and without Run.
func (s *Signals) Close() error {
	s.closeOnce.Do(func() { close(s.closing) })
	return nil
}

// Run follows the bucket until ctx is done or Close is called, and then returns nil. It is to be called once.
func (s *Signals) Run(ctx context.Context) error {
	ctx, cancel := until(ctx, s.closing)
	defer cancel()
	s.bucket.follow(ctx, s.whole, s.changed, func() { s.sweep(ctx) })
	return nil
}

// whole takes over the bucket as it is: what it does not hold any more was taken back while nobody listened.
func (s *Signals) whole(entries []jetstream.KeyValueEntry) {
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		there[e.Key()] = true
	}
	s.mu.Lock()
	for key, was := range s.stored {
		if !there[key] {
			s.setLocked(key, was.signal, 0)
		}
	}
	s.mu.Unlock()
	for _, e := range entries {
		s.changed(e)
	}
}

func (s *Signals) changed(e jetstream.KeyValueEntry) {
	var sig signal.Signal
	gone := e.Operation() != jetstream.KeyValuePut
	if !gone {
		if err := json.Unmarshal(e.Value(), &sig); err != nil {
			s.bucket.log.Error("signal in NATS refused", "key", e.Key(), "error", err)
			return
		}
		if keyOf(sig.Target, sig.Source) != e.Key() {
			s.bucket.log.Error("signal in NATS refused, it is under the key of another", "key", e.Key())
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was, ok := s.stored[e.Key()]
	switch {
	case gone && ok:
		s.setLocked(e.Key(), was.signal, 0)
	case !gone && was.revision != e.Revision():
		s.setLocked(e.Key(), sig, e.Revision())
	}
}

// setLocked stores a signal and tells the subscribers; revision 0 means that it is gone.
func (s *Signals) setLocked(key string, sig signal.Signal, revision uint64) {
	if was, ok := s.stored[key]; ok {
		s.countLocked(was.signal, -1)
		delete(s.stored, key)
	}
	if revision != 0 {
		s.countLocked(sig, 1)
		s.stored[key] = stored{signal: sig, revision: revision}
	}
	for sub := range s.subs {
		sub.put(key, notice{signal: sig, gone: revision == 0})
	}
}

// sweep removes what has ended for a while. Every process does; the revision sees to it that none removes what was
// published in the meantime.
func (s *Signals) sweep(ctx context.Context) {
	if s.bucket.writable() != nil {
		return
	}
	now := time.Now()
	s.mu.Lock()
	ended := make(map[string]uint64)
	for key, e := range s.stored {
		if e.signal.Ended(now.Add(-keepEnded)) {
			ended[key] = e.revision
		}
	}
	s.mu.Unlock()
	for key, revision := range ended {
		err := s.bucket.kv.Purge(ctx, key, jetstream.LastRevision(revision))
		if err != nil && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
			s.bucket.log.Warn("an ended signal could not be removed", "key", key, "error", err)
			return // the next time
		}
	}
	if s.ticks++; s.ticks%markersEvery == 0 {
		if err := s.bucket.kv.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(markerAge)); err != nil {
			s.bucket.log.Warn("markers of ended signals could not be removed", "error", err)
		}
	}
}

func encodeSignal(sig signal.Signal) ([]byte, error) {
	value, err := json.Marshal(sig)
	if err != nil {
		return nil, err
	}
	if len(value) > signal.MaxBytes {
		return nil, fmt.Errorf("%w: has %d bytes, the limit is %d", signal.ErrInvalid, len(value), signal.MaxBytes)
	}
	return value, nil
}

// keyOf is where a signal is kept. NATS allows few characters in a key, and a source may be long; so the name is in base64
// and the source hashed.
func keyOf(target suspend.Target, source string) string {
	sum := sha256.Sum256([]byte(source))
	return target.Scope.String() + "." + base64.RawURLEncoding.EncodeToString([]byte(target.Name)) + "." + hex.EncodeToString(sum[:16])
}
