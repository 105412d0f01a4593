package reply

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Every write that JetStream has acknowledged is on disk. Its default is to sync every two minutes.
//
// https://github.com/nats-io/nats-server/issues/7564
func TestEmbeddedServerSyncsEachWrite(t *testing.T) {
	s, _ := newNATS(t, ServerOptions{Dir: t.TempDir()})
	if c := s.ns.JetStreamConfig(); c == nil || !c.SyncAlways {
		t.Errorf("JetStream's configuration is %+v", c)
	}
}

// A volume may fill up between two starts: existing streams must open however little is free. Each has its own bound.
func TestStreamsOpenWhateverIsFree(t *testing.T) {
	s, _ := newNATS(t, ServerOptions{Dir: t.TempDir()})
	if c := s.ns.JetStreamConfig(); c == nil || c.MaxStore != maxStoreDefault {
		t.Errorf("JetStream's configuration is %+v, want a bound that does not follow from the free space", c)
	}
}

// A request whose record was lost is not one that was cancelled: its message is there, so it was accepted.
func TestRunningMakesALostRecordAnew(t *testing.T) {
	s := newStore(t, StoreOptions{})
	ctx := t.Context()
	created := time.Unix(1_700_000_000, 0).UTC()
	must(t, s.Running(ctx, Record{ID: "a", User: "u", Model: "m", Created: created, Deadline: created.Add(time.Hour)}, 3))
	r, err := s.Get(ctx, "a", "u")
	if err != nil || r.State != StateRunning || r.Attempt != 3 || r.Model != "m" || !r.Created.Equal(created) || r.Deadline.IsZero() {
		t.Errorf("%+v, %v", r, err)
	}
	must(t, s.Finish(ctx, "a", 3, Result{Status: 200, Body: []byte("answer")}))
}

// A worker may be faster than the gateway that writes the record of its message: the gateway's record has the recall handle.
func TestRunningWaitsForTheGatewaysRecord(t *testing.T) {
	s := newStore(t, StoreOptions{})
	running := make(chan error, 1)
	r := Record{ID: "a", User: "u", Created: time.Now().Round(0)}
	withHandle := r
	withHandle.RecallHandle = "h"
	go func() { running <- s.Running(t.Context(), r, 1) }()
	err := s.Create(t.Context(), withHandle)
	if err != nil && !errors.Is(err, ErrExists) { // a stalled machine lets the worker give up its wait first
		t.Fatal(err)
	}
	created := err == nil
	must(t, <-running)
	got, err := s.Get(t.Context(), "a", "u")
	if err != nil || got.State != StateRunning || created && got.RecallHandle != "h" {
		t.Errorf("got %+v, %v, want a running request with the gateway's handle", got, err)
	}
}

func TestABuriedRequestDoesNotRun(t *testing.T) {
	s := newStore(t, StoreOptions{})
	ctx := t.Context()
	for _, id := range []string{"new", "known"} {
		if id == "known" {
			must(t, s.Create(ctx, Record{ID: id, User: "u"}))
		}
		must(t, s.Bury(ctx, Record{ID: id, User: "u"}, Failure{Code: "broker_unavailable"}))
		if err := s.Running(ctx, Record{ID: id, User: "u"}, 1); !errors.Is(err, ErrFinal) {
			t.Errorf("%s: %v, want ErrFinal", id, err)
		}
		if r, err := s.Get(ctx, id, "u"); err != nil || r.State != StateFailed || r.Failure.Code != "broker_unavailable" {
			t.Errorf("%s: %+v, %v", id, r, err)
		}
	}
}

// In a completely full store each request with a record still gets an end, and no new request is admitted.
//
// https://github.com/nats-io/nats-server/issues/4754
func TestEveryOutcomeFitsIntoAFullStore(t *testing.T) {
	s := newStore(t, StoreOptions{TotalBytes: 32 << 10})
	ctx := t.Context()
	must(t, s.Admit(ctx, "u"))
	var ids []string
	for i := 0; ; i++ {
		id := fmt.Sprintf("r%06d", i)
		err := s.Create(ctx, Record{ID: id, User: "u", Model: "m", Created: time.Now().Round(0), Deadline: time.Now().Round(0)})
		if errors.Is(err, ErrFull) {
			break
		}
		must(t, err)
		ids = append(ids, id)
	}
	if err := s.Admit(ctx, "u"); !errors.Is(err, ErrFull) {
		t.Errorf("a new request is answered %v, want ErrFull", err)
	}
	if err := s.Running(ctx, Record{ID: ids[0]}, 1); !errors.Is(err, ErrFull) {
		t.Errorf("a request without room for its result is answered %v, want ErrFull", err)
	}
	for i, id := range ids {
		switch i % 3 {
		case 0:
			must(t, s.Fail(ctx, id, 12, Failure{
				Status: 502, Code: "upstream_unreachable", Type: "server_error", Message: strings.Repeat("\"<", 500),
			}))
		case 1:
			must(t, second(s.Cancel(ctx, id, "u")))
		case 2:
			must(t, s.Expire(ctx, id))
		}
		if r, err := s.Get(ctx, id, "u"); err != nil || !r.State.Final() {
			t.Fatalf("%s: %+v, %v", id, r, err)
		}
	}
	if len(ids) < 12 {
		t.Errorf("only %d records came in", len(ids))
	}
}

// An answer that does not fit into the bucket of records goes into that of results; one that fits into neither is refused,
// and the record can still say so.
func TestAnAnswerWithoutRoomIsRefused(t *testing.T) {
	s := newStore(t, StoreOptions{TotalBytes: 64 << 10, InlineBytes: 16 << 10})
	ctx := t.Context()
	body := bytes.Repeat([]byte("x"), 16<<10)
	var full string
	for i := range 20 {
		id := fmt.Sprintf("r%d", i)
		must(t, s.Create(ctx, Record{ID: id, User: "u"}))
		if err := s.Finish(ctx, id, 1, Result{Status: 200, Header: http.Header{"Content-Type": {"x"}}, Body: body}); err != nil {
			if !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			full = id
			break
		}
		r, err := s.Get(ctx, id, "u")
		must(t, err)
		if got, err := read(s.Open(ctx, r)); err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s: %d bytes, %v", id, len(got), err)
		}
	}
	if full == "" {
		t.Fatal("it all fits")
	}
	must(t, s.Fail(ctx, full, 1, Failure{Status: 507, Code: "result_not_kept"}))
}

func TestUsersAreCounted(t *testing.T) {
	s := newStore(t, StoreOptions{UserRecords: 3, UserBytes: 100_000})
	ctx := t.Context()
	must(t, s.Create(ctx, Record{ID: "before", User: "u"}))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	must(t, s.Create(ctx, Record{ID: "v", User: "v"}), s.Create(ctx, Record{ID: "b", User: "u"}), s.Create(ctx, Record{ID: "c", User: "u"}))
	refused := func(user string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !errors.Is(s.Admit(ctx, user), ErrUserFull); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is not refused", user)
			}
		}
	}
	refused("u")
	must(t, s.Admit(ctx, "v"))
	must(t, s.Finish(ctx, "v", 1, Result{Status: 200, Body: make([]byte, 100_000)}))
	refused("v")
	must(t, s.Admit(ctx, "w"))
}

// Counts go with the records, slot by slot.
func TestUserUseAges(t *testing.T) {
	u := newUserUse(23 * time.Hour)
	begin := time.Unix(1_700_000_000, 0)
	u.add("u", begin, 1, 10)
	u.add("u", begin.Add(12*time.Hour), 1, 20)
	u.add("u", begin.Add(12*time.Hour), 0, 5)
	for _, c := range []struct {
		after          time.Duration
		records, bytes int64
	}{{time.Hour, 2, 35}, {22 * time.Hour, 2, 35}, {25 * time.Hour, 1, 25}} {
		if records, bytes := u.of("u", begin.Add(c.after)); records != c.records || bytes != c.bytes {
			t.Errorf("after %s: %d records, %d bytes, want %d, %d", c.after, records, bytes, c.records, c.bytes)
		}
	}
	u.add("u", begin.Add(36*time.Hour), 1, 1) // takes the place of the one 24 hours before
	if records, bytes := u.of("u", begin.Add(36*time.Hour)); records != 1 || bytes != 1 {
		t.Errorf("%d records, %d bytes", records, bytes)
	}
	u.sweep(begin.Add(100 * time.Hour))
	if len(u.users) != 0 {
		t.Errorf("%d users are remembered that have nothing", len(u.users))
	}
}

// A large result is read in pieces, and one that was damaged or lost a piece is no result.
func TestDamagedResultsAreTold(t *testing.T) {
	s := newStore(t, StoreOptions{InlineBytes: 10})
	ctx := t.Context()
	body := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	must(t, s.Create(ctx, Record{ID: "a", User: "u"}), s.Finish(ctx, "a", 1, Result{Status: 200, Body: body}))
	r, err := s.Get(ctx, "a", "u")
	must(t, err)
	open := func() *resultReader {
		t.Helper()
		got, err := s.Open(ctx, r)
		must(t, err)
		return got.(*resultReader)
	}
	whole := open()
	piece := make([]byte, ResultChunk)
	if n, err := whole.Read(piece); err != nil || n != ResultChunk || !bytes.Equal(piece, body[:n]) {
		t.Errorf("first piece: %d bytes, %v", n, err)
	}
	if whole.left == 0 {
		t.Error("the whole result was read for its first piece")
	}
	other := open()
	other.digest = "SHA-256=AAAA"
	if _, err := io.ReadAll(other); !errors.Is(err, ErrResult) {
		t.Errorf("other digest: %v", err)
	}
	lacks := open()
	must(t, s.resultStream.DeleteMsg(ctx, 2))
	if _, err := io.ReadAll(lacks); !errors.Is(err, ErrResult) {
		t.Errorf("a piece is missing: %v", err)
	}
}

// A volume without room for the sizes that JetStream would reserve gets buckets that fit.
//
// https://github.com/nats-io/k8s/issues/740
func TestStoreFitsIntoLittleRoom(t *testing.T) {
	for most, want := range map[int64]bool{100 << 20: true, 17 << 20: true, 10 << 20: false} {
		s, err := StartServer(ServerOptions{Dir: t.TempDir(), maxStore: most})
		must(t, err)
		t.Cleanup(s.Close)
		store, err := OpenStore(t.Context(), connect(t, s), StoreOptions{})
		if (err == nil) != want {
			t.Errorf("%d MiB: %v", most>>20, err)
			continue
		}
		if err != nil {
			if !strings.Contains(err.Error(), "8388608") {
				t.Errorf("error %q does not say how much is needed", err)
			}
			continue
		}
		room, err := store.Room(t.Context())
		must(t, err)
		if both := room.RecordBytesMax + room.ResultBytesMax; both > most || both < most/2 {
			t.Errorf("of %d MiB %d are set aside", most>>20, both>>20)
		}
	}
	s, err := StartServer(ServerOptions{Dir: t.TempDir(), maxStore: 100 << 20})
	must(t, err)
	t.Cleanup(s.Close)
	nc := connect(t, s)
	if _, err := OpenStore(t.Context(), nc, StoreOptions{TotalBytes: 80 << 20}); err == nil || !strings.Contains(err.Error(), "async-bytes") {
		t.Errorf("error %v does not name the setting", err)
	}
	// Another kind of process uses the existing buckets, whatever its own defaults are.
	if _, err = OpenStore(t.Context(), nc, StoreOptions{TotalBytes: 20 << 20}); err != nil {
		t.Fatal(err)
	}
	adopted, err := OpenStore(t.Context(), nc, StoreOptions{Adopt: true})
	must(t, err)
	if room, err := adopted.Room(t.Context()); err != nil || room.ResultBytesMax != 20<<20 {
		t.Errorf("%+v, %v", room, err)
	}
}

// A disk that was full stops JetStream's writes for good, even when there is room again. The server starts it anew.
//
// https://github.com/nats-io/nats-server/issues/6141
func TestJetStreamWritesAgainAfterAFullDisk(t *testing.T) {
	dir := t.TempDir()
	var room atomic.Bool
	s, nc := newNATS(t, ServerOptions{Dir: dir, probe: func() error {
		if room.Load() {
			return nil
		}
		return errors.New("no space left on device")
	}})
	store, err := OpenStore(t.Context(), nc, StoreOptions{TotalBytes: 120 << 10}) // blocks of 32 KiB
	must(t, err)
	// The second block cannot be written.
	block := filepath.Join(dir, "jetstream", "$G", "streams", "KV_"+recordBucket, "msgs", "2.blk")
	must(t, os.Symlink("/dev/full", block))
	var failed error
	for i := 0; i < 100 && failed == nil; i++ {
		failed = store.Create(t.Context(), Record{ID: fmt.Sprintf("r%d", i), User: "u"})
	}
	if failed == nil {
		t.Fatal("writes go on")
	}
	if store.Check(t.Context()) == nil {
		t.Error("a store that cannot be written to says that it works")
	}
	must(t, os.Remove(block))
	room.Store(true)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := store.Create(t.Context(), Record{ID: fmt.Sprint("again", time.Now().UnixNano()), User: "u"}); err == nil && s.Restarts() > 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("with room again: %v, %d restarts", err, s.Restarts())
		}
	}
	must(t, store.Check(t.Context()))
	if r, err := store.Get(t.Context(), "r0", "u"); err != nil || r.ID != "r0" {
		t.Errorf("what was there before: %+v, %v", r, err)
	}
}
