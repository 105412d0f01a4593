package reply

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"time"
)

func newStore(t *testing.T, opts StoreOptions) *Store {
	t.Helper()
	_, nc := newNATS(t, ServerOptions{Dir: t.TempDir()})
	s, err := OpenStore(t.Context(), nc, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStoreLife(t *testing.T) {
	s := newStore(t, StoreOptions{InlineBytes: 10})
	ctx := t.Context()
	deadline := time.Unix(2_000_000_000, 0).UTC()
	must(t, s.Create(ctx, Record{ID: "a", User: "u", Model: "m", RecallHandle: "h", Deadline: deadline}))
	if err := s.Create(ctx, Record{ID: "a", User: "u"}); !errors.Is(err, ErrExists) {
		t.Errorf("second create: %v", err)
	}
	must(t, s.Running(ctx, Record{ID: "a"}, 1))
	s.Queued(ctx, "a")
	r, err := s.Get(ctx, "a", "u")
	if err != nil || r.State != StateQueued {
		t.Errorf("queued again: %+v, %v", r, err)
	}
	must(t, s.Running(ctx, Record{ID: "a"}, 2))
	r, err = s.Get(ctx, "a", "u")
	if err != nil || r.State != StateRunning || r.Attempt != 2 || r.RecallHandle != "h" || !r.Deadline.Equal(deadline) {
		t.Errorf("running: %+v, %v", r, err)
	}
	for _, body := range [][]byte{[]byte("small"), bytes.Repeat([]byte("large"), 100_000)} {
		id := "r" + string(body[:1])
		must(t, s.Create(ctx, Record{ID: id, User: "u"}))
		must(t, s.Finish(ctx, id, 1, Result{Status: 200, Body: body, Usage: Usage{1, 2}}))
		r, err := s.Get(ctx, id, "u")
		must(t, err)
		got, err := read(s.Open(ctx, r))
		if err != nil || !bytes.Equal(got, body) || r.State != StateDone || r.Size != len(body) || r.Usage.Output != 2 {
			t.Errorf("%d bytes: %d came, %v, %v", len(body), len(got), r.State, err)
		}
		if (r.Object != "") != (len(body) > 10) {
			t.Errorf("%d bytes: object %q", len(body), r.Object)
		}
	}
	must(t, s.Fail(ctx, "a", 2, Failure{Status: 502, Code: "x"}))
	r, err = s.Get(ctx, "a", "u")
	if err != nil || r.State != StateFailed || r.Status != 502 || r.Failure.Code != "x" || r.Finished.IsZero() {
		t.Errorf("failed: %+v, %v", r, err)
	}
}

func read(body io.Reader, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return io.ReadAll(body)
}

func TestStoreHidesFromOthers(t *testing.T) {
	s := newStore(t, StoreOptions{})
	must(t, s.Create(t.Context(), Record{ID: "a", User: "u"}))
	for name, err := range map[string]error{
		"foreign":  second(s.Get(t.Context(), "a", "v")),
		"nobody":   second(s.Get(t.Context(), "a", "")),
		"unknown":  second(s.Get(t.Context(), "b", "u")),
		"wildcard": second(s.Get(t.Context(), "*", "u")),
		"cancel":   second(s.Cancel(t.Context(), "a", "v")),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestStoreFinalIsFinal(t *testing.T) {
	s := newStore(t, StoreOptions{InlineBytes: 1, ResultBytes: 100})
	ctx := t.Context()
	must(t, s.Create(ctx, Record{ID: "a", User: "u", RecallHandle: "h"}))
	before, err := s.Cancel(ctx, "a", "u")
	if err != nil || before.State != StateQueued || before.RecallHandle != "h" {
		t.Fatalf("cancel: %+v, %v", before, err)
	}
	for name, err := range map[string]error{
		"running": s.Running(ctx, Record{ID: "a"}, 1),
		"finish":  s.Finish(ctx, "a", 1, Result{Body: []byte("inline no")}),
		"fail":    s.Fail(ctx, "a", 0, Failure{}),
		"bury":    s.Bury(ctx, Record{ID: "a"}, Failure{}),
		"expire":  s.Expire(ctx, "a"),
		"cancel":  second(s.Cancel(ctx, "a", "u")),
	} {
		if !errors.Is(err, ErrFinal) {
			t.Errorf("%s: %v, want ErrFinal", name, err)
		}
	}
	if r, err := s.Get(ctx, "a", "u"); err != nil || r.State != StateCancelled {
		t.Errorf("at the end: %v, %v", r.State, err)
	}
	if err := s.Finish(ctx, "a", 1, Result{Body: make([]byte, 101)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// TestStoreCancelRacesAnswer: of a cancel and an answer at the same time exactly one wins, and the record is the winner's.
func TestStoreCancelRacesAnswer(t *testing.T) {
	s := newStore(t, StoreOptions{})
	ctx := t.Context()
	for i := range 20 {
		id := "r" + string(rune('a'+i))
		must(t, s.Create(ctx, Record{ID: id, User: "u"}), s.Running(ctx, Record{ID: id}, 1))
		var finish, cancel error
		var wg sync.WaitGroup
		wg.Go(func() { finish = s.Finish(ctx, id, 1, Result{Status: 200}) })
		wg.Go(func() { _, cancel = s.Cancel(ctx, id, "u") })
		wg.Wait()
		r, err := s.Get(ctx, id, "u")
		must(t, err)
		switch {
		case finish == nil && errors.Is(cancel, ErrFinal) && r.State == StateDone:
		case cancel == nil && errors.Is(finish, ErrFinal) && r.State == StateCancelled:
		default:
			t.Fatalf("finish %v, cancel %v, record %v", finish, cancel, r.State)
		}
	}
}

func TestCollector(t *testing.T) {
	c := NewCollector(4)
	must(t, c.Head(200, nil), c.Chunk([]byte("ab")), c.Chunk([]byte("cd")))
	if err := c.Chunk([]byte("e")); !errors.Is(err, ErrTooLarge) {
		t.Errorf("fifth byte: %v", err)
	}
	if got := c.Result(); string(got.Body) != "abcd" || got.Status != 200 {
		t.Errorf("got %+v", got)
	}
	if err := c.Answer(200, nil, []byte("12345"), Usage{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("answer: %v", err)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"id":"a","state":"done","body":"eA=="}`))
	f.Add([]byte(`{"id":"a","state":"flying"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, value []byte) {
		r, err := decodeRecord(value)
		if err != nil {
			if !errors.Is(err, ErrRecord) {
				t.Fatalf("%v does not wrap ErrRecord", err)
			}
			return
		}
		again, err := encodeRecord(r)
		if err != nil {
			t.Skip() // a time that JSON can read and not write
		}
		if _, err := decodeRecord(again); err != nil {
			t.Fatal(err)
		}
	})
}

// A year that JSON cannot hold, of a sender's clock, once made a record that could not be written.
func TestRecordOfAnyClockIsStored(t *testing.T) {
	for _, created := range []time.Time{
		time.Unix(1<<62, 0), time.Unix(-1<<62, 0), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), {},
	} {
		value, err := encodeRecord(Record{ID: "a", State: StateQueued, Created: created})
		if err != nil {
			t.Errorf("created %v: %v", created, err)
			continue
		}
		got, err := decodeRecord(value)
		if err != nil || (!got.Created.Equal(created) && !got.Created.IsZero()) {
			t.Errorf("created %v came back as %v, %v", created, got.Created, err)
		}
	}
}
