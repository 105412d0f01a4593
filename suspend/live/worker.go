package live

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// worker polls one signal of the policy.
//
// # Times
//
// I is the interval. A poll that fails is repeated after I/2, so that one lost packet is not news. When nobody, this
// process or another, has had a reading for 7/4 I, the signal is reported as stale, once: within two intervals of the end
// of the feed, whether its server refuses (polls fail at I and 3/2 I) or hangs (the poll that began at I is given up at 7/4 I).
// While it is stale it is polled each I/2, so its return is noticed within one interval.
//
// What is published is valid until StaleAfter past its reading (at least 2 I, or it would be stale between two polls), and
// renewed by each reading that finds it older than 0.9 I. So of several pollers one writes, once an interval; and with all
// of them gone, every board lets the factor go to its default at the same instant, without being told.
type worker struct {
	spec   policy.Signal // immutable, as the following
	reader reader
	store  Store
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}

	began time.Time // immutable

	mute    bool  // that nothing can be published was logged; owned by the worker's goroutine, as the following
	unread  bool  // it was reported that no page was read yet that would name a target
	failure error // of the last poll; nil if it gave a reading

	mu       sync.Mutex // guards the following fields; the worker's goroutine alone changes them
	targets  map[suspend.Target]*track
	polls    uint64
	failures uint64
}

// track is what a worker knows of one target.
type track struct {
	read     time.Time // of this process's last reading; zero: none yet
	since    time.Time // from when on a reading was to be had
	value    float64
	permille int64
	stale    bool
}

func startWorker(ctx context.Context, opts *PollerOptions, spec policy.Signal) (*worker, error) {
	r, err := newReader(opts.Client, spec)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		spec: spec, reader: r, store: opts.Signals, log: opts.Logger.With("signal", spec.Name),
		cancel: cancel, done: make(chan struct{}), targets: make(map[suspend.Target]*track), began: time.Now(),
	}
	if spec.Of.By == "" {
		w.targets[targetOf(spec.Of)] = &track{permille: signal.Full, since: w.began}
	} else {
		w.adopt()
	}
	go w.run(ctx) // ends with ctx; stop waits for it
	return w, nil
}

// adopt takes over the targets that another poller has found by the label: should the page be gone now, somebody has to say so.
func (w *worker) adopt() {
	for _, s := range w.store.All() {
		if s.Source == w.source() && s.Target.Scope == suspend.Column && len(w.targets) < maxTargets {
			w.targets[s.Target] = &track{permille: signal.Full, since: w.began}
		}
	}
}

func (w *worker) stop() {
	w.cancel()
	<-w.done
}

// clear takes back what the worker has published. REQUIRES: it has stopped.
func (w *worker) clear(ctx context.Context) {
	for target := range w.targets {
		if err := w.store.Clear(ctx, target, w.source()); err != nil {
			w.log.Warn("load signal could not be taken back", "target", target, "error", err)
		}
	}
}

// sourcePrefix begins the source of every polled signal.
const sourcePrefix = "poll/"

// sourceOf is who publishes a signal: the same in each process, for they say the same.
func sourceOf(spec policy.Signal) string { return sourcePrefix + spec.Name }

func (w *worker) source() string { return sourceOf(w.spec) }

func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if !time.Now().Before(next) {
			next = w.poll(ctx)
			if ctx.Err() != nil {
				return
			}
		}
		timer.Reset(time.Until(w.review(ctx, next)))
	}
}

// poll reads once and returns when to do so again.
func (w *worker) poll(ctx context.Context) time.Time {
	began := time.Now()
	values, err := w.reader.read(ctx)
	if ctx.Err() != nil {
		return began
	}
	now := time.Now().Round(0)
	w.mu.Lock()
	w.polls++
	if err != nil {
		w.failures++
	}
	w.mu.Unlock()
	w.failure = err
	if err != nil {
		w.log.Debug("load signal not read", "error", err)
		return began.Add(w.spec.Interval / 2)
	}
	for target, value := range values {
		w.take(ctx, now, target, value)
	}
	return began.Add(w.spec.Interval)
}

// take publishes what a reading says, if it is news or the last was a while ago.
func (w *worker) take(ctx context.Context, now time.Time, target suspend.Target, value float64) {
	was, ok := w.store.Get(target, w.source())
	fresh := ok && now.Before(was.Until)
	last := int64(signal.Full)
	if fresh {
		last = was.Permille
	}
	factor := signal.Grade(last, w.spec.Floor, value, w.spec.Target)
	renew := !fresh || was.Permille != factor || was.Default != w.spec.WhenStale ||
		now.Sub(was.At) >= w.spec.Interval*9/10
	if renew {
		w.publish(ctx, signal.Signal{
			Target: target, Source: w.source(), Permille: factor, Default: w.spec.WhenStale,
			At: now, Until: now.Add(max(w.spec.StaleAfter, 2*w.spec.Interval)), Kind: signal.Poll, Reason: reasonOf(w.spec, value),
		})
	}
	w.mu.Lock()
	t := w.targets[target]
	if t == nil {
		if len(w.targets) >= maxTargets { // a page names at most so many, so those that it names no more soon are stale
			maps.DeleteFunc(w.targets, func(_ suspend.Target, t *track) bool { return t.stale })
		}
		t = &track{permille: signal.Full}
		w.targets[target] = t
	}
	before, back := t.permille, t.stale
	t.read, t.value, t.permille, t.stale = now, value, factor, false
	w.mu.Unlock()
	if back {
		w.log.Info("load signal is back", "target", target, "value", value, "permille", factor)
	}
	switch {
	case before == signal.Full && factor < signal.Full:
		w.log.Info("load over target", "target", target, "value", value, "limit", w.spec.Target, "permille", factor)
	case before < signal.Full && factor == signal.Full:
		w.log.Info("load within target", "target", target, "value", value, "limit", w.spec.Target)
	}
}

// review reports what has become stale or is back, and returns when there is something to do again: next or earlier.
func (w *worker) review(ctx context.Context, next time.Time) time.Time {
	now := time.Now().Round(0)
	next = w.reviewUnread(now, next)
	for target, t := range w.targets { // no lock: this goroutine alone writes
		latest, published := w.latest(now, target, t)
		due := latest.Add(w.spec.Interval * 7 / 4)
		stale := !now.Before(due)
		if !stale && due.Before(next) {
			next = due
		}
		if stale == t.stale {
			continue
		}
		w.mu.Lock()
		t.stale = stale
		w.mu.Unlock()
		if !stale {
			w.log.Info("load signal is back, another process reads it", "target", target)
			continue
		}
		w.warnStale("target", target, "last_read", latest, "when_stale_permille", w.spec.WhenStale)
		if !published { // nobody ever read it; say so, or the target would count as at rest
			w.publish(ctx, signal.Signal{
				Target: target, Source: w.source(), Permille: w.spec.WhenStale, Default: w.spec.WhenStale,
				At: now, Until: now, Kind: signal.Poll, Reason: w.spec.Series + " has never been read",
			})
		}
	}
	return next
}

// reviewUnread reports a signal of which nobody knows what it scales, as no page was read that would name it.
func (w *worker) reviewUnread(now, next time.Time) time.Time {
	due := w.began.Add(w.spec.Interval * 7 / 4)
	switch {
	case len(w.targets) > 0:
		if w.unread {
			w.unread = false
			w.log.Info("load signal is back")
		}
	case w.unread:
	case now.Before(due):
		return earliest(next, due)
	default:
		w.unread = true
		w.warnStale("target", "unknown: no page was read that names one in "+w.spec.Of.By)
	}
	return next
}

// warnStale says why, if this process knows.
func (w *worker) warnStale(attrs ...any) {
	if w.failure != nil {
		attrs = append(attrs, "error", w.failure)
	}
	w.log.Warn("load signal stale", attrs...)
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// latest is when anybody last read the target, or when this process began to try; published says whether there is a signal.
func (w *worker) latest(now time.Time, target suspend.Target, t *track) (at time.Time, published bool) {
	at = t.read
	if at.IsZero() {
		at = t.since
	}
	was, ok := w.store.Get(target, w.source())
	// A signal that was stale from the start tells of no reading.
	if ok && was.Until.After(was.At) && was.At.After(at) && !was.At.After(now) {
		at = was.At
	}
	return at, ok
}

// publish logs the first failure of several: NATS is away, and everything that follows it says so.
func (w *worker) publish(ctx context.Context, s signal.Signal) {
	err := w.store.Publish(ctx, s)
	if err != nil && !w.mute && ctx.Err() == nil {
		w.log.Warn("load signal not published", "target", s.Target, "error", err)
	}
	w.mute = err != nil
}

func (w *worker) stats() []PollStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	stats := make([]PollStats, 0, len(w.targets))
	for target, t := range w.targets {
		stats = append(stats, PollStats{
			Name: w.spec.Name, Target: target, Permille: t.permille, Value: t.value, At: t.read, Stale: t.stale,
			Polls: w.polls, Failures: w.failures,
		})
	}
	return stats
}

func reasonOf(spec policy.Signal, value float64) string {
	return fmt.Sprintf("%s is %.4g, target %.4g", spec.Series, value, spec.Target)
}
