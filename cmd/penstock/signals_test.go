package main

import (
	"context"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
)

func TestOrderOfSignals(t *testing.T) {
	for _, server := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &signals{stopNow: make(chan struct{})}
			ctx, first := context.WithCancel(context.WithValue(t.Context(), signalsKey{}, s))
			if server && secondSignal(ctx) != s.stopNow {
				t.Fatal("a server does not hear of the second signal")
			}
			came, end := make(chan os.Signal, 2), make(chan struct{})
			ended := make(chan struct{})
			go func() { defer close(ended); s.follow(came, first, end) }()
			stopped := func(c <-chan struct{}) bool {
				synctest.Wait()
				select {
				case <-c:
					return true
				default:
					return false
				}
			}
			if stopped(ctx.Done()) {
				t.Error("stopped without a signal")
			}
			came <- syscall.SIGTERM
			if !stopped(ctx.Done()) || stopped(s.stopNow) {
				t.Error("the first signal is no stop with grace")
			}
			if stopped(ended) == server {
				t.Errorf("server=%v: the watch of signals goes on: %v", server, !stopped(ended))
			}
			if server {
				came <- syscall.SIGTERM
				if !stopped(s.stopNow) || !stopped(ended) {
					t.Error("the second signal does not end the grace of a server")
				}
			}
			close(end)
		})
	}
	if secondSignal(t.Context()) != nil {
		t.Error("a context without a watch has a second signal")
	}
}

func TestSignalsAreLeftAloneAtTheEnd(t *testing.T) {
	ctx, stop := watchSignals(t.Context())
	stop()
	if ctx.Err() == nil {
		t.Error("the context of a command outlives it")
	}
}
