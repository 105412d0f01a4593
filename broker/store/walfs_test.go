package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// recordFS stands where the disk is and remembers, of each log file, what was
// written and how much of it a real sync covered.
type recordFS struct {
	vfs.FS
	mu    sync.Mutex
	files []*recordFile
}

type recordFile struct {
	vfs.File
	fs *recordFS
	// guarded by fs.mu
	data   []byte
	synced int
	syncs  int
	closed bool
}

func (r *recordFS) record(f vfs.File, category vfs.DiskWriteCategory, err error) (vfs.File, error) {
	if err != nil || category != walCategory {
		return f, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rf := &recordFile{File: f, fs: r}
	r.files = append(r.files, rf)
	return rf, nil
}

func (r *recordFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := r.FS.Create(name, category)
	return r.record(f, category, err)
}

func (r *recordFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := r.FS.ReuseForWrite(oldname, newname, category)
	return r.record(f, category, err)
}

func (f *recordFile) Write(p []byte) (int, error) {
	f.fs.mu.Lock()
	f.data = append(f.data, p...)
	f.fs.mu.Unlock()
	return f.File.Write(p)
}

func (f *recordFile) SyncData() error { return f.sync(f.File.SyncData) }
func (f *recordFile) Sync() error     { return f.sync(f.File.Sync) }

func (f *recordFile) sync(under func() error) error {
	f.fs.mu.Lock()
	covered := len(f.data)
	f.fs.mu.Unlock()
	err := under()
	f.fs.mu.Lock()
	f.synced = covered
	f.syncs++
	f.fs.mu.Unlock()
	return err
}

func (f *recordFile) Close() error {
	f.fs.mu.Lock()
	f.closed = true
	f.fs.mu.Unlock()
	return f.File.Close()
}

// has reports whether the log contains the marker, in what was written or, if
// synced, in what a real sync covered.
func (r *recordFS) has(marker []byte, synced bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.files {
		data := f.data
		if synced {
			data = data[:f.synced]
		}
		if bytes.Contains(data, marker) {
			return true
		}
	}
	return false
}

func (r *recordFS) syncs() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.files {
		n += f.syncs
	}
	return n
}

// marked is a message whose body holds a marker twice: the log cuts records into
// blocks, and a cut can go through one of them only.
func marked(marker string) *Message {
	return &Message{Body: []byte(marker + fmt.Sprintf("%100d", 0) + marker)}
}

func TestWrittenSkipsSyncs(t *testing.T) {
	t.Parallel()
	fs := &recordFS{FS: vfs.NewMem()}
	s := openMem(t, fs)
	begin := fs.syncs()
	for i := range uint64(50) {
		marker := fmt.Sprintf("written-%04d", i)
		write(t, s, Written, func(b *Batch) { b.PutMessage(1, i, marked(marker)) })
		if !fs.has([]byte(marker), false) {
			t.Fatalf("batch %d was promised to be written and is not", i)
		}
	}
	if n := fs.syncs() - begin; n != 0 {
		t.Errorf("%d syncs for Written batches, want none", n)
	}
	write(t, s, Durable, func(b *Batch) { b.PutMessage(2, 1, marked("durable")) })
	if n := fs.syncs() - begin; n != 1 {
		t.Errorf("%d syncs for one Durable batch, want 1", n)
	}
	if !fs.has([]byte("written-0049"), true) || !fs.has([]byte("durable"), true) {
		t.Error("the sync did not cover all that was written before it")
	}
	if m := s.Metrics(); m.Syncs != int64(fs.syncs()) || m.SyncsSkipped < 50 || m.DurablePending != 0 {
		t.Errorf("metrics %+v", m)
	}
}

func TestAsyncFlushSkipsSyncs(t *testing.T) {
	t.Parallel()
	fs := &recordFS{FS: vfs.NewMem()}
	s, err := Open(Options{Dir: "data", FS: fs, AsyncFlush: true})
	if err != nil {
		t.Fatal(err)
	}
	begin := fs.syncs()
	write(t, s, Durable, func(b *Batch) { b.PutMessage(1, 1, marked("async")) })
	if n := fs.syncs() - begin; n != 0 {
		t.Errorf("%d syncs, want none", n)
	}
	if !fs.has([]byte("async"), false) {
		t.Error("not written")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !fs.has([]byte("async"), true) {
		t.Error("a clean stop did not sync")
	}
}

// TestClassesConcurrently: many writers of both classes at once; whenever Wait says
// that a batch holds, the disk is asked whether that is true.
func TestClassesConcurrently(t *testing.T) {
	t.Parallel()
	fs := &recordFS{FS: vfs.NewMem()}
	s := openMem(t, fs)
	const writers, batches = 8, 150
	var wg sync.WaitGroup
	for w := range uint64(writers) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(w, 1))
			for i := range uint64(batches) {
				d := Written
				if rng.IntN(writers) == 0 { // seldom, so that some syncs cover none and are skipped
					d = Durable
				}
				marker := fmt.Sprintf("marker-%d-%04d-", w, i)
				b := s.NewBatch()
				b.PutMessage(w, i, marked(marker))
				if err := s.Apply(b, d); err != nil {
					t.Error(err)
					return
				}
				if err := b.Wait(); err != nil {
					t.Error(err)
					return
				}
				if !fs.has([]byte(marker), d == Durable) {
					t.Errorf("class %d: batch %s does not hold", d, marker)
				}
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if m := s.Metrics(); m.DurablePending != 0 {
		t.Errorf("metrics %+v: want none pending", m)
	}
}

// TestClosedLogIsSynced: when Pebble turns to a new log file, all of the old one is
// on disk, though nobody asked for it.
func TestClosedLogIsSynced(t *testing.T) {
	t.Parallel()
	fs := &recordFS{FS: vfs.NewMem()}
	s := openMem(t, fs)
	body := make([]byte, 8<<10)
	for i := range uint64(400) { // 3.2 MiB through memtables that grow from 256 KiB
		write(t, s, Written, func(b *Batch) { b.PutMessage(1, i, &Message{Body: body}) })
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	closed := 0
	for i, f := range fs.files {
		if !f.closed {
			continue
		}
		closed++
		if f.synced != len(f.data) {
			t.Errorf("log file %d: %d of %d bytes are on disk", i, f.synced, len(f.data))
		}
	}
	if closed < 3 {
		t.Fatalf("only %d log files were closed", closed)
	}
}
