package broker_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/suspend"
)

func TestSuspendHoldsOneBucketAndCountsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		send(t, b, "1", "a", "b")
		send(t, b, "2", "a")
		var held broker.Delivery
		for _, d := range poll(t, b, 10, 0) {
			if d.Lite == "a" {
				held = d
			} else {
				ack(t, b, d)
			}
		}
		begin := time.Now()
		if err := b.Suspend(t.Context(), topic, group, held.Handle, 7*time.Millisecond, "test", "limit"); err != nil {
			t.Fatal(err)
		}
		send(t, b, "2", "b")
		ack(t, b, one(t, b, 0)) // b goes on
		d := one(t, b, time.Minute)
		if d.Lite != "a" || string(d.Body) != "1" || d.Attempt != 1 {
			t.Errorf("after the suspend came %q of %s, attempt %d", d.Body, d.Lite, d.Attempt)
		}
		if late := time.Since(begin); late < 7*time.Millisecond || late > 9*time.Millisecond {
			t.Errorf("released after %v, want 7 to 9 ms", late)
		}
		closeBroker(t, b)
	})
}

func TestSuspendRefusesBadDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		send(t, b, "x", "a")
		d := one(t, b, 0)
		for _, bad := range []time.Duration{-1, -time.Hour, 24*time.Hour + 1, 1<<63 - 1} {
			if err := b.Suspend(t.Context(), topic, group, d.Handle, bad, "test", ""); !errors.Is(err, suspend.ErrNegative) && !errors.Is(err, suspend.ErrTooLong) {
				t.Errorf("suspend of %d ns: %v", bad, err)
			}
		}
		none(t, b, 59*time.Second) // it is still in flight, with its lease unchanged
		ack(t, b, d)
		closeBroker(t, b)
	})
}

// A model's Retry-After over the group's longest suspend was refused: nothing was held, and
// the attempt was spent when the lease ended.
func TestSuspendOverTheGroupsLongestIsDrawnIn(t *testing.T) {
	for _, how := range []string{"suspend", "settle", "hold"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := options(vfs.NewMem())
				o.Groups[0].MaxSuspend = 30 * time.Second
				b := open(t, o)
				send(t, b, "x", "u__m")
				d, begin := one(t, b, 0), time.Now()
				var err error
				switch how {
				case "suspend":
					err = b.Suspend(t.Context(), topic, group, d.Handle, 72*time.Minute, "w", "429")
				case "settle":
					err = b.SettleWith(t.Context(), topic, group, d.Handle, broker.Settlement{Then: broker.ThenSuspend, For: 72 * time.Minute})
				default:
					var h suspend.Hold
					h, err = b.HoldFor(t.Context(), topic, group, suspend.Target{Scope: suspend.Column, Name: "m"}, 72*time.Minute, "w", "429")
					if want := begin.Add(30 * time.Second); !h.Until.Equal(want) {
						t.Errorf("held until %v, want %v", h.Until, want)
					}
					b.Release(topic, []string{d.Handle})
				}
				if err != nil {
					t.Fatal(err)
				}
				again := one(t, b, time.Minute)
				if after := time.Since(begin); after < 30*time.Second || after > 31*time.Second || again.Attempt != 1 {
					t.Errorf("back after %v in attempt %d, want 30s and 1", after, again.Attempt)
				}
				closeBroker(t, b)
			})
		})
	}
}
