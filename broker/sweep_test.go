package broker

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker/store"
)

// TestSweepGoesOnBehindItsTombstones: a sweep begins where the last one ended, and at the
// start of the index again after a while and after a step of the clock.
func TestSweepGoesOnBehindItsTombstones(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 25, 12, 0, 0, 0, time.UTC)
	st, err := store.Open(store.Options{Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	batch := st.NewBatch()
	batch.PutExpiry(&store.Expiry{At: noon, Bucket: 1, Name: "looked at before"})
	if err := commit(st, batch); err != nil {
		t.Fatal(err)
	}
	_, behind, err := st.DueExpiry(store.ExpiryPlace{}, noon, 10)
	if err != nil {
		t.Fatal(err)
	}
	var p sweepPlace
	for _, c := range []struct {
		name string
		now  time.Time
		sees int // entries
	}{
		{"first", noon, 1},
		{"next", noon.Add(time.Second), 0},
		{"clock set back", noon, 1},
		{"next after that", noon.Add(time.Second), 0},
		{"a while later", noon.Add(wholeSweep), 1},
	} {
		p.begin(c.now)
		due, next, err := st.DueExpiry(p.next, c.now, 10)
		if err != nil || len(due) != c.sees || next != behind {
			t.Errorf("%s: %d entries, %v, want %d", c.name, len(due), err, c.sees)
		}
		p.next = next
	}
}
