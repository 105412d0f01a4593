package consumer

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

func TestASignalScalesThePoolsOwnLimits(t *testing.T) {
	doc, err := policy.Parse([]byte("version: 1\ncolumns: [{model: gpt, rate: 10/s}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	l := newLimiter(fixed(doc), time.Millisecond)
	now := time.Unix(1000, 0)
	column := suspend.Target{Scope: suspend.Column, Name: alice.Model}
	half := signal.Signal{Target: column, Source: "test", Kind: signal.Manual, Permille: 500, At: now}

	gap := func() time.Duration {
		now = now.Add(time.Minute)
		if a := l.ask(now, asking(alice, 1), true); !a.ok {
			t.Fatalf("the first after a minute has to wait until %v", a.until)
		}
		return l.ask(now, asking(alice, 1), true).wait(now)
	}
	if got := gap(); got != 100*time.Millisecond {
		t.Errorf("without a signal: one in %v, want 100ms", got)
	}
	l.signal(now, half, false)
	if got := gap(); got != 200*time.Millisecond {
		t.Errorf("scaled by half: one in %v, want 200ms", got)
	}
	l.signal(now, half, true)
	if got := gap(); got != 100*time.Millisecond {
		t.Errorf("a minute after the signal has gone: one in %v, want 100ms", got)
	}
}
