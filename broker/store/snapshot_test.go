package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestSnapshotShowsWhatIsDeleted deletes messages in both ways, one by one and as a
// range, behind a snapshot that still has them.
func TestSnapshotShowsWhatIsDeleted(t *testing.T) {
	t.Parallel()
	for _, n := range []uint64{10, maxSingleDeletes + 10} {
		s := openMem(t, vfs.NewMem())
		write(t, s, Durable, func(b *Batch) {
			for off := range n {
				b.PutMessage(bucket7, off, message(fmt.Sprint(off)))
			}
			b.PutMessage(bucket7+1, 0, message("another bucket"))
		})
		view, err := s.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		write(t, s, Durable, func(b *Batch) { b.DeleteMessages(bucket7, 0, n) })
		if ms, err := s.messages(bucket7, 0, 100); err != nil || len(ms) != 0 {
			t.Fatalf("%d messages are left in the store, %v", len(ms), err)
		}
		var got []uint64
		for from := uint64(2); ; {
			page, err := view.Headers(bucket7, from, n-1, 4)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range page {
				if m.Message.Body != nil || m.Message.ID != message(fmt.Sprint(m.Offset)).ID {
					t.Errorf("offset %d is %+v", m.Offset, m.Message)
				}
				got = append(got, m.Offset)
			}
			if len(page) < 4 {
				break
			}
			from = page[len(page)-1].Offset + 1
		}
		if want := n - 3; uint64(len(got)) != want || got[0] != 2 || !slices.IsSorted(got) {
			t.Errorf("%d headers from %v on, want %d", len(got), got[:1], want)
		}
		view.Close()
		view.Close() // twice is fine
	}
}

// TestCloseWaitsForSnapshots: the engine must not be closed under a reader.
func TestCloseWaitsForSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openMem(t, vfs.NewMem())
		view, err := s.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("closed under a snapshot: %v", err)
		default:
		}
		if _, err := view.Headers(bucket7, 0, 10, 10); err != nil {
			t.Errorf("read while the store waits: %v", err)
		}
		view.Close()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if _, err := s.Snapshot(); !errors.Is(err, ErrClosed) {
			t.Errorf("snapshot of a closed store: %v", err)
		}
	})
}

func TestMessageHeader(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	m := sampleMessage()
	write(t, s, Durable, func(b *Batch) { b.PutMessage(bucket7, 1, &m) })
	got, size, err := s.MessageHeader(bucket7, 1)
	if err != nil || size != len(m.Body) || got.Body != nil || got.ID != m.ID || len(got.Properties) != 2 {
		t.Errorf("got %+v, %d bytes, %v", got, size, err)
	}
	if _, _, err := s.MessageHeader(bucket7, 2); !errors.Is(err, ErrNotFound) {
		t.Errorf("a message that is not there: %v", err)
	}
}

func TestFindProperty(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	write(t, s, Durable, func(b *Batch) {
		for off := range uint64(10) {
			m := message("m")
			m.Properties = []Property{{"id", fmt.Sprint("r", off)}, {"other", "r8"}}
			b.PutMessage(bucket7, off, m)
		}
	})
	for _, c := range []struct {
		from  uint64
		limit int
		want  string
		off   uint64
		found bool
		seen  int
	}{
		{0, 100, "r3", 3, true, 4},
		{4, 100, "r3", 10, false, 6}, // it lies before
		{0, 3, "r3", 3, false, 3},    // go on at 3
		{3, 3, "r3", 3, true, 1},
		{0, 100, "r8", 8, true, 9}, // the other property does not count
		{0, 100, "nothing", 10, false, 10},
		{0, 0, "r3", 0, false, 0},
	} {
		off, found, seen, err := s.FindProperty(bucket7, c.from, Property{"id", c.want}, c.limit)
		if err != nil || off != c.off || found != c.found || seen != c.seen {
			t.Errorf("%+v: got %d, %v, %d seen, %v", c, off, found, seen, err)
		}
	}
}
