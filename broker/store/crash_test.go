package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// state is what a model of the store holds: the messages by place, and the cursor
// that every batch moves, which says how many batches there were.
type state struct {
	step     uint64
	messages map[[2]uint64]string
}

func (s state) clone() state { return state{s.step, maps.Clone(s.messages)} }

const crashBuckets = 6

// readState reads the same from a store.
func readState(t *testing.T, s *Store) state {
	t.Helper()
	got := state{messages: map[[2]uint64]string{}}
	err := s.EachCursor(1, func(c Cursor) bool { got.step = c.Floor; return true })
	for b := range uint64(crashBuckets) {
		ms, merr := s.messages(b, 0, math.MaxInt)
		err = errors.Join(err, merr)
		for _, m := range ms {
			got.messages[[2]uint64{b, m.Offset}] = m.Message.ID
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// workload applies random batches of messages and deletions, of both classes.
type workload struct {
	rng        *rand.Rand
	head, tail [crashBuckets]uint64
	now        state
	history    []state // by step
}

func newWorkload(seed uint64) *workload {
	w := &workload{rng: rand.New(rand.NewPCG(seed, 7)), now: state{messages: map[[2]uint64]string{}}}
	w.history = []state{w.now.clone()}
	return w
}

func (w *workload) fill(b *Batch) {
	w.now.step++
	for range 1 + w.rng.IntN(3) {
		k := uint64(w.rng.IntN(crashBuckets))
		if w.rng.IntN(3) == 0 && w.head[k] < w.tail[k] {
			// Sometimes all of a long backlog, which takes a range delete.
			to := w.head[k] + 1 + uint64(w.rng.Int64N(int64(w.tail[k]-w.head[k])))
			b.DeleteMessages(k, w.head[k], to)
			for ; w.head[k] < to; w.head[k]++ {
				delete(w.now.messages, [2]uint64{k, w.head[k]})
			}
			continue
		}
		id := fmt.Sprintf("%d-%d", k, w.tail[k])
		b.PutMessage(k, w.tail[k], &Message{ID: id, Body: make([]byte, w.rng.IntN(6000))})
		w.now.messages[[2]uint64{k, w.tail[k]}] = id
		w.tail[k]++
	}
	b.PutCursor(&Cursor{Group: 1, Bucket: 1, Floor: w.now.step})
	w.history = append(w.history, w.now.clone())
}

// TestCrashAtEveryStep cuts the power of a random workload again and again. What is
// found is the state after some batch: not before the last Durable one that Wait
// vouched for, and nothing in between.
func TestCrashAtEveryStep(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			crashSteps(t, seed, 150)
		})
	}
}

func crashSteps(t *testing.T, seed uint64, steps int) {
	t.Helper()
	var misuse atomic.Int64
	fs := vfs.NewCrashableMem()
	s := openWatched(t, fs, &misuse)
	w := newWorkload(seed)
	var durable uint64 // the last step that Wait vouched for
	for range steps {
		b := s.NewBatch()
		w.fill(b)
		d := Durability(w.rng.IntN(2))
		if err := s.Apply(b, d); err != nil {
			t.Fatal(err)
		}
		// Before Wait the batch may be there or not.
		if w.rng.IntN(8) == 0 {
			checkCrash(t, fs, w, durable, w.rng.IntN(101))
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if d == Durable {
			durable = w.now.step
		}
		switch w.rng.IntN(8) {
		case 0: // only what was synced
			checkCrash(t, fs, w, durable, 0)
		case 1: // and some pages that were not, in any order
			checkCrash(t, fs, w, durable, 1+w.rng.IntN(99))
		case 2: // the process dies, the machine does not: Written is enough
			checkCrash(t, fs, w, w.now.step, 100)
		}
	}
	if n := misuse.Load(); n > 0 {
		t.Errorf("%d messages were stored twice under one key", n)
	}
}

func openWatched(t *testing.T, fs vfs.FS, misuse *atomic.Int64) *Store {
	t.Helper()
	s, err := open(context.Background(), Options{Dir: "data", FS: fs, MemTableBytes: 256 << 10}.withDefaults(), func(o *pebble.Options) {
		o.AddEventListener(pebble.EventListener{PossibleAPIMisuse: func(i pebble.PossibleAPIMisuseInfo) {
			if i.Kind == pebble.NondeterministicSingleDelete {
				misuse.Add(1)
			}
		}})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// checkCrash opens what a crash now would leave and compares it with the model.
func checkCrash(t *testing.T, fs *vfs.MemFS, w *workload, atLeast uint64, unsyncedPercent int) {
	t.Helper()
	clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsyncedPercent, RNG: w.rng})
	s, err := Open(Options{Dir: "data", FS: clone, MemTableBytes: 256 << 10})
	if err != nil {
		t.Fatalf("crash at step %d with %d%% of unsynced pages: %v", w.now.step, unsyncedPercent, err)
	}
	got := readState(t, s)
	if err := s.Damaged(); err != nil {
		t.Errorf("crash at step %d with %d%% of unsynced pages counts as damage: %v", w.now.step, unsyncedPercent, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got.step < atLeast || got.step > w.now.step {
		t.Fatalf("crash at step %d with %d%%: found step %d, promised %d", w.now.step, unsyncedPercent, got.step, atLeast)
	}
	if want := w.history[got.step]; !reflect.DeepEqual(got, want) {
		t.Fatalf("crash at step %d with %d%%: step %d has\n%v\nwant\n%v", w.now.step, unsyncedPercent, got.step, got.messages, want.messages)
	}
}

// tornTails writes Written batches, which sync nothing, cuts the power so that a
// random half of the pages is lost, and returns how many of the stores still open.
func tornTails(t *testing.T, format pebble.FormatMajorVersion) (opened, total int, refusal error) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	tune := func(o *pebble.Options) { o.FormatMajorVersion = format }
	o := Options{Dir: "data", FS: fs}.withDefaults()
	s, err := open(context.Background(), o, tune)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for off := range uint64(300) {
		write(t, s, Written, func(b *Batch) { b.PutMessage(1, off, &Message{Body: make([]byte, 3000)}) })
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for total = range 20 {
		o.FS = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng})
		crashed, err := open(context.Background(), o, tune)
		if err != nil {
			refusal = err
			continue
		}
		opened++
		if err := crashed.Close(); err != nil {
			t.Error(err)
		}
	}
	return opened, total + 1, refusal
}

// TestPowerCutTornTail: a power cut that writes later pages of the log and loses
// earlier ones must not keep the store from opening.
func TestPowerCutTornTail(t *testing.T) {
	t.Parallel()
	if opened, total, err := tornTails(t, formatMajorVersion); opened != total {
		t.Errorf("%d of %d stores opened, the last error was %v", opened, total, err)
	}
}

// TestNewerFormatRefusesTornTail shows why formatMajorVersion is not newer. When this
// fails, Pebble has changed, and value separation can be had; see walfs.go.
func TestNewerFormatRefusesTornTail(t *testing.T) {
	t.Parallel()
	opened, total, err := tornTails(t, pebble.FormatWALSyncChunks)
	if opened == total || !errors.Is(err, ErrCorrupt) {
		t.Errorf("%d of %d stores opened, the last error was %v", opened, total, err)
	}
}

// TestStoredTwiceIsReported: the misuse that would break SingleDelete is seen.
func TestStoredTwiceIsReported(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s, err := Open(Options{Dir: "data", FS: vfs.NewMem(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, Written, func(b *Batch) { b.PutMessage(1, 1, message("first")) })
	write(t, s, Written, func(b *Batch) { b.PutMessage(1, 1, message("second")) })
	write(t, s, Written, func(b *Batch) { b.DeleteMessages(1, 1, 2) })
	if err := errors.Join(s.db.Flush(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "message stored twice") {
		t.Errorf("log is %q", log.String())
	}
}
