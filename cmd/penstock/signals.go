package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// signals is the order of SIGINT and SIGTERM of one process: the first asks for a stop with grace, the second ends the grace
// of a server, the next one kills. A command that is no server is killed by the second.
type signals struct {
	stopNow chan struct{} // closed by the second signal
	serves  atomic.Bool   // a server listens to stopNow
}

type signalsKey struct{}

// watchSignals returns a context that ends with the first signal. stop ends the watch.
func watchSignals(parent context.Context) (ctx context.Context, stop func()) {
	s := &signals{stopNow: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithValue(parent, signalsKey{}, s))
	came := make(chan os.Signal, 2)
	signal.Notify(came, os.Interrupt, syscall.SIGTERM)
	ended, unwatch := context.WithCancel(context.Background())
	go s.follow(came, cancel, ended.Done())
	return ctx, func() {
		signal.Stop(came)
		unwatch()
		cancel()
	}
}

// follow acts on the signals that come until end is closed.
func (s *signals) follow(came chan os.Signal, first func(), end <-chan struct{}) {
	select {
	case <-came:
	case <-end:
		return
	}
	first()
	if s.serves.Load() {
		select {
		case <-came:
		case <-end:
			return
		}
		close(s.stopNow)
	}
	signal.Stop(came) // the system's own way with the next one
}

// secondSignal is closed when the second signal comes. From then on the process counts as a server. Nil, which is never
// closed, in a context of no watch.
func secondSignal(ctx context.Context) <-chan struct{} {
	s, watched := ctx.Value(signalsKey{}).(*signals)
	if !watched {
		return nil
	}
	s.serves.Store(true)
	return s.stopNow
}
