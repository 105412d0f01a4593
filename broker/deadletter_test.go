package broker_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestDeadLettersAreBoundedAndTheOldestGoesFirst(t *testing.T) {
	t.Parallel()
	const most, count = 3, 5
	fs := vfs.NewMem()
	o := options(fs)
	o.MaxDeadLetters = most
	b := open(t, o)
	check := func(when string) {
		t.Helper()
		list, err := b.DeadLetters(t.Context(), group, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range list {
			got = append(got, string(d.Message.Body))
		}
		if len(got) != most || got[0] != "2" || got[most-1] != "4" {
			t.Errorf("%s: the dead letters are %v, want 2 to 4", when, got)
		}
	}
	for i := range count {
		send(t, b, string(rune('0'+i)), "bucket")
		if err := b.DeadLetter(t.Context(), topic, group, one(t, b, 0).Handle, "test"); err != nil {
			t.Fatal(err)
		}
	}
	check("in the same process")
	closeBroker(t, b)
	b = open(t, o)
	check("after a restart")
}
