package live

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstockmq/penstock/suspend/signal"
)

// from is an alarm of a sender.
func from(sender, source string) signal.Signal {
	a := alarm(source, 300)
	a.Sender = sender
	return a
}

// fill puts signals into the memory of s alone, as if its watcher had brought them.
func fill(s *Signals, n int, of func(i int) signal.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range n {
		sig := of(i)
		s.setLocked(keyOf(sig.Target, sig.Source), sig, uint64(i+1))
	}
}

func (s *Signals) bySender() map[string]int {
	n := map[string]int{}
	for _, sig := range s.All() {
		n[sig.Sender]++
	}
	return n
}

func TestSignalsAreBounded(t *testing.T) {
	s, err := OpenSignals(t.Context(), newNATS(t).connect(), Options{}) // without Run, which would read the bucket again
	if err != nil {
		t.Fatal(err)
	}
	fill(s, MaxOfSender, func(i int) signal.Signal { return from(signal.SenderToken, fmt.Sprint("t", i)) })
	err = s.Publish(t.Context(), from(signal.SenderToken, "one more"))
	if !errors.Is(err, ErrTooMany) || !strings.Contains(err.Error(), "5000 alarms of this sender") {
		t.Errorf("one more alarm with the token: error %v, want one that names the bound", err)
	}
	if err := s.Publish(t.Context(), from(signal.SenderToken, "t0")); err != nil {
		t.Errorf("an alarm that is renewed: %v", err)
	}
	fill(s, MaxSignals-MaxOfSender, func(i int) signal.Signal { return from(signal.SenderSNS+"arn", fmt.Sprint("s", i)) })
	poll := from("", "poll")
	poll.Kind = signal.Poll
	for _, sig := range []signal.Signal{poll, from(signal.SenderAddress+"10.0.0.1", "x"), from(signal.SenderSNS+"other", "x")} {
		if err := s.Publish(t.Context(), sig); !errors.Is(err, ErrTooMany) || !strings.Contains(err.Error(), "10000 signals") {
			t.Errorf("one more of %q: error %v, want one that names the bound", sig.Sender, err)
		}
	}
	if n := s.Displaced(); n != 0 {
		t.Errorf("%d proven alarms were displaced", n)
	}
}

// TestAFloodOfAlarmsKeepsNoRealOneOut: addresses without a proof fill their bound. They
// displace their own oldest alarms, and none of a sender with a token; and they are displaced
// by its alarms when all places are taken.
func TestAFloodOfAlarmsKeepsNoRealOneOut(t *testing.T) {
	s := runSignals(t, newNATS(t).connect())
	news := listen(t, s)
	publish := func(sig signal.Signal) {
		t.Helper()
		mustPublish(t, s, sig)
		for got := receive(t, news); got.gone || got.signal.Source != sig.Source; got = receive(t, news) {
			continue // those that gave way
		}
	}
	publish(from(signal.SenderToken, "real"))
	const flooder, other, third = signal.SenderAddress + "10.0.0.1", signal.SenderAddress + "10.0.0.2", signal.SenderAddress + "10.0.0.3"
	for i := range MaxOfAddress + 50 {
		publish(from(flooder, fmt.Sprintf("%05d", i)))
	}
	if n := s.bySender(); n[flooder] != MaxOfAddress || n[signal.SenderToken] != 1 || s.Displaced() != 50 {
		t.Errorf("in force %v, displaced %d; want %d of the flooder, the real one, 50", n, s.Displaced(), MaxOfAddress)
	}
	if slices.ContainsFunc(s.All(), func(sig signal.Signal) bool { return sig.Source == "00049" }) {
		t.Error("the flooder's oldest alarms are still there")
	}
	// All addresses together: the oldest of all goes.
	fill(s, MaxUnproven-MaxOfAddress, func(i int) signal.Signal { return from(other, fmt.Sprint("o", i)) })
	publish(from(third, "of a third address"))
	if n := s.bySender(); n[flooder]+n[other] != MaxUnproven-1 || n[third] != 1 {
		t.Errorf("in force %v, want %d of the two addresses and one of the third", n, MaxUnproven-1)
	}
	// Every place is taken.
	fill(s, MaxSignals-len(s.All()), func(i int) signal.Signal { return from(signal.SenderSNS+"arn", fmt.Sprint("s", i)) })
	publish(from(signal.SenderToken, "a later real one"))
	if n := s.bySender(); n[signal.SenderToken] != 2 || n[flooder]+n[other]+n[third] != MaxUnproven-1 {
		t.Errorf("in force %v, want both real ones and one unproven less", n)
	}
}
