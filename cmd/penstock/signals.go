package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// signals gives SIGINT and SIGTERM their meanings: the first requests a stop with grace, the second ends the grace of a server,
// the next one kills. A command that is no server is killed by the second.
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

// follow handles the signals until end is closed.
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
	signal.Stop(came) // the next signal has the system's default effect
}

// secondSignal returns a channel that is closed by the second signal. From this call on the process counts as a server. Without
// a watch in ctx it returns nil, which is never closed.
func secondSignal(ctx context.Context) <-chan struct{} {
	s, watched := ctx.Value(signalsKey{}).(*signals)
	if !watched {
		return nil
	}
	s.serves.Store(true)
	return s.stopNow
}
