package reply

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestCancel(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	here, err := NewCancels(connect(t, srv), CancelsOptions{})
	must(t, err)
	pool := connect(t, srv)
	elsewhere, err := NewCancels(pool, CancelsOptions{})
	must(t, err)
	must(t, pool.Flush())
	c := NewCanceller(nc, time.Minute) // whoever runs it answers; the wait is not what ends the test

	ctx, cancel := context.WithCancel(t.Context())
	release := elsewhere.Register("a", cancel)
	running, err := c.Cancel(t.Context(), "a")
	if err != nil || !running {
		t.Fatalf("Cancel: %v, %v", running, err)
	}
	if ctx.Err() == nil {
		t.Error("the request goes on")
	}
	release()
	if n := len(elsewhere.running); n != 0 {
		t.Errorf("%d requests registered", n)
	}
	must(t, here.Close(), here.Close(), elsewhere.Close())
}

func TestCancelOfNothing(t *testing.T) {
	srv, nc := newNATS(t, ServerOptions{})
	c := NewCanceller(nc, time.Millisecond)
	if running, err := c.Cancel(t.Context(), "a"); running || err != nil {
		t.Errorf("no pool: %v, %v", running, err)
	}
	pool := connect(t, srv)
	_, err := NewCancels(pool, CancelsOptions{})
	must(t, err, pool.Flush())
	if running, err := c.Cancel(t.Context(), "a"); running || err != nil {
		t.Errorf("not running: %v, %v", running, err)
	}
	if _, err := c.Cancel(t.Context(), "*"); err == nil {
		t.Error("a wildcard cancels")
	}
}

// TestCancelOvertakes: the cancel is at the pool before its request.
func TestCancelOvertakes(t *testing.T) {
	_, nc := newNATS(t, ServerOptions{})
	c, err := NewCancels(nc, CancelsOptions{RememberMax: 2})
	must(t, err)
	calls := map[string]int{}
	for _, id := range []string{"a", "b", "b", "c"} {
		must(t, nc.Publish(cancelPrefix+"."+id, nil))
	}
	seen := make(chan struct{})
	release := c.Register("last", func() { close(seen) })
	must(t, nc.Publish(cancelPrefix+".last", nil)) // pushes out b
	<-seen
	release()
	for _, id := range []string{"a", "b", "c", "d"} {
		c.Register(id, func() { calls[id]++ })()
	}
	if calls["a"] != 0 || calls["b"] != 0 || calls["c"] != 1 || calls["d"] != 0 {
		t.Errorf("cancelled at registration: %v, want c alone", calls)
	}
}

func TestCancelIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Cancels{
			opts:    CancelsOptions{Remember: time.Minute, RememberMax: 10},
			running: map[string][]*registration{}, recent: map[string]time.Time{},
		}
		c.rememberLocked("a", time.Now())
		time.Sleep(time.Minute - 1)
		called := false
		c.Register("a", func() { called = true })()
		if !called {
			t.Error("forgotten early")
		}
		time.Sleep(time.Nanosecond)
		called = false
		c.Register("a", func() { called = true })()
		if called {
			t.Error("remembered too long")
		}
		c.rememberLocked("b", time.Now())
		if len(c.recent) != 1 || len(c.oldest) != 1 {
			t.Errorf("kept %v", c.recent)
		}
	})
}

func TestRegisterTwice(t *testing.T) {
	_, nc := newNATS(t, ServerOptions{})
	c, err := NewCancels(nc, CancelsOptions{})
	must(t, err)
	first, second := 0, make(chan struct{})
	release := c.Register("a", func() { first++ })
	c.Register("a", func() { close(second) })
	release() // the older delivery ends; the newer is still to be found
	must(t, nc.Publish(cancelPrefix+".a", nil))
	<-second
	if first != 0 {
		t.Error("a released request was cancelled")
	}
}
