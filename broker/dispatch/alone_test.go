package dispatch

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// A message that costs more than a window has left waits alone for its end. It goes before that if room comes back, be it that a
// message was given back unsent, or that a signal leaves more of the window.

func TestWhoWaitsAloneGoesWhenRoomIsGivenBack(t *testing.T) {
	for _, rule := range []string{
		"rows:\n  - {user: a, window: 3/24h}\n", "columns:\n  - {model: m, window: 3/24h}\n",
		"levels:\n  - {level: 1, window: 3/24h}\n", "broker: {window: 3/24h}\n",
	} {
		r := newRig(t, TopicConfig{}, wild)
		r.apply(rule)
		r.send("a__m")
		out := r.one(1, "c")
		dear := "a__n"
		if rule[0] == 'c' {
			dear = "b__m"
		}
		r.cost.Requests = 3
		r.send(dear)
		r.none(1, "c")
		if err := r.m.Settle(r.now, out.Handle, quota.Settlement{Outcome: quota.Unsent, Tokens: -1, OutputTokens: -1}, ThenAck()); err != nil {
			t.Fatal(err)
		}
		r.turn()
		if got := r.pull(1, "c", 1); len(got) != 1 || got[0].Name != dear {
			t.Errorf("%s: pulled %v, want what cost more than was left", rule, got)
		}
	}
}

func TestWhoWaitsAloneGoesWhenASignalEnds(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.apply("columns:\n  - {model: m, window: 10/24h}\n")
	r.signal(suspend.Target{Scope: suspend.Column, Name: "m"}, 500, time.Minute)
	r.send("a__m", messages(4)...)
	for range 4 {
		r.ack(r.one(1, "c"))
	}
	r.cost.Requests = 2
	r.send("b__m")
	r.none(1, "c") // 4 of 5 are used
	r.pass(time.Minute + 10*time.Second)
	r.ack(r.one(1, "c"))
}
