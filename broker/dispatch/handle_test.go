package dispatch

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend/quota"
)

// A renewal whose answer is lost is repeated with the handle that the client has. The
// lease goes on, over a restart too, and the message is not delivered a second time.
func TestRepeatedRenewalWithTheSameHandle(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart=", restart), func(t *testing.T) {
			r := newRig(t, TopicConfig{}, wild)
			r.send("b")
			it := r.one(1, "c") // leased for 60 s
			renew := func() {
				t.Helper()
				if err := r.m.ChangeInvisible(r.now, it.Handle, 30*time.Second); err != nil {
					t.Fatal(err)
				}
				r.turn()
			}
			r.pass(40 * time.Second)
			renew()
			if restart {
				r.restart()
			}
			r.pass(20 * time.Second)
			renew()
			r.pass(29 * time.Second)
			r.none(1, "c")
			r.ack(it)
			r.pass(time.Minute)
			r.none(1, "c")
		})
	}
}

// After a retry the message waits for its next attempt: late calls of the worker neither move
// nor settle it.
func TestRetryEndsTheWorkersHandle(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	r.send("b")
	it := r.one(1, "c")
	if err := r.m.Settle(r.now, it.Handle, quota.Settlement{}, ThenRetry(5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := r.m.ChangeInvisible(r.now, it.Handle, time.Minute); !errors.Is(err, ErrStaleHandle) {
		t.Errorf("late renewal: %v, want ErrStaleHandle", err)
	}
	if err := r.m.Ack(r.now, it.Handle); !errors.Is(err, ErrStaleHandle) {
		t.Errorf("late ack: %v, want ErrStaleHandle", err)
	}
	r.turn()
	r.pass(5 * time.Second)
	if again := r.one(1, "c"); again.Attempt != 2 {
		t.Errorf("attempt %d, want 2", again.Attempt)
	}
}

// A handle with a token that was never issued settles nothing, whatever message it names. A
// token issued by an earlier run is accepted.
func TestTokensThatWereNeverGivenOutSettleNothing(t *testing.T) {
	r := newRig(t, TopicConfig{}, wild)
	a := r.send("b")
	r.send("other")
	late := r.one(1, "c")
	for _, token := range []Token{0, late.Handle.Token + 100, 1 << 60} {
		h := Handle{Group: 1, Bucket: a.Bucket, Offset: a.First, Token: token}
		if err := r.m.Ack(r.now, h); !errors.Is(err, ErrStaleHandle) {
			t.Errorf("ack with token %x: %v, want ErrStaleHandle", token, err)
		}
	}
	r.turn()
	r.ack(late)
	if it := r.one(1, "c"); it.Name == late.Name {
		t.Fatalf("got %v", it)
	}
	r.send("third")
	it := r.one(1, "c")
	r.restart()
	r.ack(it)
	r.none(1, "c")
}
