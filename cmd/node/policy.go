package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/live"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// policySource is where the policy comes from: a file, a directory, or NATS.
type policySource interface {
	Current() *policy.Document
	// Changed is closed at the next change of Current.
	Changed() <-chan struct{}
}

// noPolicy is the source of a process that has neither: nothing is limited.
type noPolicy struct{ doc *policy.Document }

func (p noPolicy) Current() *policy.Document { return p.doc }
func (p noPolicy) Changed() <-chan struct{}  { return nil }

// steering is what limits are decided by in this process.
type steering struct {
	policy  policySource
	store   admin.PolicyStore // nil when nothing can be applied here
	path    string
	signals *live.Signals // nil without NATS
	notice  func() string // text when the policy in force is a copy of one that NATS has lost; nil without NATS
}

// startSteering opens the policy and the signals, and has read what is in force when it returns. A file or directory wins
// over what is kept in NATS: whoever names one wants it to be the truth.
func (n *Node) startSteering(ctx context.Context) (*steering, error) {
	s := &steering{policy: noPolicy{policy.Empty()}}
	if n.nats != nil {
		if err := n.openSignals(ctx, s); err != nil {
			return nil, fmt.Errorf("signals: %w", err)
		}
	}
	switch {
	case n.opts.Policy != "":
		file, err := policy.Open(n.opts.Policy, n.log.With("part", "policy"))
		if err != nil {
			return nil, fmt.Errorf("%w: policy: %w", ErrOptions, err)
		}
		n.onClose(base, file.Close)
		n.run(base, "policy", file.Run)
		s.policy, s.path = file, n.opts.Policy
	case n.nats != nil:
		policies, err := waitForNATS(ctx, n, func(ctx context.Context) (*live.Policies, error) {
			return live.OpenPolicies(ctx, n.nats, live.Options{Logger: n.log.With("part", "policy"), Keep: n.keptPolicy()})
		})
		if err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
		n.onClose(base, policies.Close)
		n.run(base, "policy", policies.Run)
		s.policy, s.store, s.notice = policies, policies, policies.Lost
		n.watchPolicies(policies)
	}
	return s, nil
}

// keptPolicy returns the file in which a process with a data folder keeps the policy in force, beside NATS.
func (n *Node) keptPolicy() string {
	if n.opts.Parts&(Broker|NATS) == 0 {
		return ""
	}
	return filepath.Join(n.opts.Data, "policy-in-force.json")
}

// watchPolicies adds a metric and a notice for a policy that NATS has lost.
func (n *Node) watchPolicies(p *live.Policies) {
	n.checks = append(n.checks, admin.Check{Name: "policy", Run: func(context.Context) error {
		if text := p.Lost(); text != "" {
			return fmt.Errorf("%w: %s", admin.ErrDegraded, text)
		}
		return nil
	}})
	gauges(n.registry, "policy", []counter{{"lost", "1 while the policy in force is a kept copy because NATS has lost it.", func() int64 {
		if p.Lost() != "" {
			return 1
		}
		return 0
	}}})
}

func (n *Node) openSignals(ctx context.Context, s *steering) error {
	signals, err := waitForNATS(ctx, n, func(ctx context.Context) (*live.Signals, error) {
		return live.OpenSignals(ctx, n.nats, live.Options{Logger: n.log.With("part", "signals")})
	})
	if err != nil {
		return err
	}
	n.onClose(base, signals.Close)
	n.run(base, "signals", signals.Run)
	s.signals = signals
	return nil
}

// startPoller reads the metrics that the policy names. The pool does it: it reaches the models.
func (n *Node) startPoller(s *steering) {
	if s.signals == nil {
		return
	}
	poller := live.NewPoller(live.PollerOptions{
		Current: s.policy.Current, Changed: s.policy.Changed, Signals: s.signals, Logger: n.log.With("part", "signals"),
	})
	admin.RegisterPoller(n.registry, poller)
	n.run(base, "poller", poller.Run)
}

// steerMax bounds how long a change may take to reach the owner loops.
const steerMax = 30 * time.Second

// steerRetry is the pause before a change that did not reach every topic is tried again.
const steerRetry = time.Second

// steerBroker keeps the broker at the policy and the signals in force. Those of now are there when it returns, so before
// anything is delivered.
func (n *Node) steerBroker(ctx context.Context, s *steering) error {
	if s.signals != nil {
		if err := n.steerBySignals(ctx, s.signals); err != nil {
			return err
		}
	}
	n.run(core, "policy of the broker", func(ctx context.Context) error {
		for {
			changed := s.policy.Changed() // before Current, so that no change is missed
			var again <-chan time.Time
			try, cancel := context.WithTimeout(ctx, steerMax)
			if err := n.broker.SetPolicy(try, s.policy.Current()); err != nil && ctx.Err() == nil {
				n.log.Error("policy did not reach the broker", "retry_after", steerRetry, "error", err)
				again = time.After(steerRetry)
			}
			cancel()
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-again:
			}
		}
	})
	return nil
}

// signalChange is what became of the signal of one source.
type signalChange struct {
	signal signal.Signal
	gone   bool
}

// signalQueue is the changes on their way to the owner loops: the latest of each source, so it is no longer than there are
// sources.
type signalQueue struct {
	wake chan struct{} // holds a token when there is something

	mu      sync.Mutex
	changes map[signalKey]signalChange // guarded by mu
}

type signalKey struct {
	target suspend.Target
	source string
}

func newSignalQueue() *signalQueue {
	return &signalQueue{wake: make(chan struct{}, 1), changes: map[signalKey]signalChange{}}
}

// put takes note of a change. It does not block.
func (q *signalQueue) put(s signal.Signal, gone bool) {
	q.mu.Lock()
	q.changes[signalKey{s.Target, s.Source}] = signalChange{s, gone}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// putBack keeps a change that could not be applied, unless a later change of its source exists.
func (q *signalQueue) putBack(c signalChange) {
	q.mu.Lock()
	defer q.mu.Unlock()
	key := signalKey{c.signal.Target, c.signal.Source}
	if _, later := q.changes[key]; !later {
		q.changes[key] = c
	}
}

// run applies queued changes until ctx is done. A change that apply refuses is tried again after steerRetry, unless a later
// change of its source replaces it.
func (q *signalQueue) run(ctx context.Context, apply func(context.Context, signalChange) error) {
	for {
		select {
		case <-q.wake: // a token for changes that are taken now
		default:
		}
		var again <-chan time.Time
		for _, c := range q.take() {
			if apply(ctx, c) != nil {
				q.putBack(c)
				again = time.After(steerRetry)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-again:
		}
	}
}

func (q *signalQueue) take() map[signalKey]signalChange {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.changes
	q.changes = map[signalKey]signalChange{}
	return taken
}

func (n *Node) steerBySignals(ctx context.Context, signals *live.Signals) error {
	for _, s := range signals.All() {
		if err := n.broker.SetSignal(ctx, s); err != nil {
			return fmt.Errorf("signals: %w", err)
		}
	}
	q := newSignalQueue()
	cancel := signals.Subscribe(q.put) // tells those of now once more, and so none between the two is missed
	n.onClose(core, unsubscribe(cancel))
	n.run(core, "signals of the broker", func(ctx context.Context) error {
		q.run(ctx, n.applySignal)
		return nil
	})
	return nil
}

// unsubscribe is cancel as a closer.
func unsubscribe(cancel func()) func() error {
	return func() error { cancel(); return nil }
}

func (n *Node) applySignal(ctx context.Context, c signalChange) error {
	try, cancel := context.WithTimeout(ctx, steerMax)
	defer cancel()
	var err error
	if c.gone {
		err = n.broker.DropSignal(try, c.signal.Target, c.signal.Source)
	} else {
		err = n.broker.SetSignal(try, c.signal)
	}
	if err != nil && ctx.Err() == nil { // a stop is no failure, running out of time is one
		n.log.Error("signal did not reach the broker", "target", c.signal.Target.String(), "source", c.signal.Source, "error", err)
	}
	return err
}

// waitForNATS opens what lives in JetStream. A NATS server elsewhere may come up after us, so it is waited for until ctx
// ends.
func waitForNATS[T any](ctx context.Context, n *Node, open func(context.Context) (T, error)) (T, error) {
	for told := false; ; told = true {
		try, cancel := context.WithTimeout(ctx, natsTry)
		got, err := open(try)
		cancel()
		if err == nil {
			return got, nil
		}
		if ctx.Err() != nil {
			return got, errors.Join(context.Cause(ctx), err)
		}
		if n.nats.IsConnected() && !errors.Is(err, context.DeadlineExceeded) {
			return got, err // it is there and says no
		}
		if !told {
			n.log.Warn("waiting for nats", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(natsReconnectWait):
		}
	}
}
