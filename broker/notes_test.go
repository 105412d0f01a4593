package broker_test

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/suspend"
)

// TestTheReasonOfADeadLetterIsCut: a worker's text is kept for as long as the dead letter is.
func TestTheReasonOfADeadLetterIsCut(t *testing.T) {
	t.Parallel()
	b := open(t, options(vfs.NewMem()))
	send(t, b, "1", "a", "b")
	long := strings.Repeat("ä", 100_000)
	for i, d := range poll(t, b, 2, 0) {
		var err error
		if i == 0 {
			err = b.DeadLetter(t.Context(), topic, group, d.Handle, long)
		} else {
			err = b.SettleWith(t.Context(), topic, group, d.Handle, broker.Settlement{Then: broker.ThenReject, Reason: long})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	letters, err := b.DeadLetters(t.Context(), group, 0, 10)
	if err != nil || len(letters) != 2 {
		t.Fatalf("%d dead letters, %v", len(letters), err)
	}
	for _, l := range letters {
		if n := len(l.Reason); n > suspend.MaxNoteBytes || n < suspend.MaxNoteBytes-1 || !strings.HasPrefix(long, l.Reason) {
			t.Errorf("a reason of %d bytes, want the first %d, in whole characters", len(l.Reason), suspend.MaxNoteBytes)
		}
	}
}
