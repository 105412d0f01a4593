package store

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/penstockmq/penstock/broker/lite"
)

func openMem(tb testing.TB, fs vfs.FS) *Store {
	tb.Helper()
	s, err := Open(Options{Dir: "data", FS: fs, MemTableBytes: 256 << 10, CacheBytes: 1 << 20})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func write(tb testing.TB, s *Store, d Durability, fill func(b *Batch)) {
	tb.Helper()
	b := s.NewBatch()
	fill(b)
	if err := s.Apply(b, d); err != nil {
		tb.Fatal(err)
	}
	if err := b.Wait(); err != nil {
		tb.Fatal(err)
	}
	if err := b.Close(); err != nil {
		tb.Fatal(err)
	}
}

func bucketID(topic uint16, seq uint64) uint64 { return uint64(topic)<<topicShift | seq }

func message(id string) *Message { return &Message{ID: id, Body: []byte("body of " + id)} }

// TestRecordsSurviveReopen puts every record, opens the folder again, and finds them.
func TestRecordsSurviveReopen(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	m := sampleMessage()
	topic := Topic{ID: 3, Name: "requests"}
	group := Group{ID: 5, Name: "pool", Topic: "requests"}
	bucket := Bucket{ID: bucket7, Name: "a__m", Cell: lite.Cell{User: "a", Model: "m"}, Head: 1, Tail: 3}
	cursor := Cursor{Group: 5, Bucket: bucket7, Floor: 2}
	lease := Lease{Group: 5, Bucket: bucket7, Offset: 2, Until: noon, Token: 9, Client: "c"}
	hold := Hold{Group: 5, Scope: 1, Name: "a", Until: noon}
	expiry := Expiry{At: noon, Bucket: bucket7, Name: "a__m"}
	letter := DeadLetter{Group: 5, Seq: 1, Topic: "requests", Lite: "a__m", Message: &m}
	sub := Subscription{Group: 5, Client: "c", Names: []string{"a__m"}}
	accounts := []Account{
		{Group: 5, Scope: 0, Name: "a__m", Data: []byte{1}},
		{Group: 5, Scope: 1, Name: "a", Data: []byte{2, 0}},
		{Group: 5, Scope: 1, Name: "b", Data: []byte{3}},
		{Group: 5, Scope: 4, Data: []byte{4}},
	}

	s := openMem(t, fs)
	write(t, s, Durable, func(b *Batch) {
		b.PutTopic(&topic)
		b.PutGroup(&group)
		b.PutBucket(&bucket)
		b.PutMessage(bucket7, 2, &m)
		b.PutCursor(&cursor)
		b.PutLease(&lease)
		b.PutHold(&hold)
		b.PutExpiry(&expiry)
		b.PutDeadLetter(&letter)
		b.PutSubscription(&sub)
		for i := range accounts { // not in the order of their keys
			b.PutAccount(&accounts[len(accounts)-1-i])
		}
		b.PutNextTopicID(4)
		b.PutNextGroupID(6)
		b.PutNextBucket(3, 1000)
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openMem(t, fs)

	var got []any
	add := func(v any, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		got = append(got, v)
	}
	add(nil, s.EachTopic(func(r Topic) bool { got = append(got, r); return true }))
	add(nil, s.EachGroup(func(r Group) bool { got = append(got, r); return true }))
	add(nil, s.EachBucket(3, "", func(r Bucket) bool { got = append(got, r); return true }))
	add(nil, s.EachCursor(5, func(r Cursor) bool { got = append(got, r); return true }))
	add(nil, s.EachLease(5, func(r Lease) bool { got = append(got, r); return true }))
	add(nil, s.EachHold(5, func(r Hold) bool { got = append(got, r); return true }))
	add(nil, s.EachSubscription(5, func(r Subscription) bool { got = append(got, r); return true }))
	add(nil, s.EachAccount(5, func(r Account) bool { got = append(got, r); return true }))
	add(s.Message(bucket7, 2))
	add(dueExpiry(s, noon, 10))
	add(s.DeadLetter(5, 1))
	add(s.DeadLetters(5, 0, 10))
	add(s.NextTopicID())
	add(s.NextGroupID())
	add(s.NextBucket(3))
	add(s.NextDeadLetter(5))
	want := []any{
		topic, nil, group, nil, bucket, nil, cursor, nil, lease, nil, hold, nil, sub, nil,
		accounts[0], accounts[1], accounts[2], accounts[3], nil,
		&m,
		[]Expiry{expiry},
		&letter,
		[]*DeadLetter{&letter},
		uint16(4), uint32(6), uint64(1000), uint64(2),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
	if b, ok, err := s.Bucket(3, "a__m"); err != nil || !ok || b != bucket {
		t.Errorf("bucket: %+v, %v, %v", b, ok, err)
	}
}

func TestFreshStore(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	if _, err := s.Message(1, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("message: %v", err)
	}
	if _, err := s.DeadLetter(1, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("dead letter: %v", err)
	}
	if _, ok, err := s.Bucket(1, "a"); ok || err != nil {
		t.Errorf("bucket: %v, %v", ok, err)
	}
	for name, next := range map[string]func() (uint64, error){
		"topic":       func() (uint64, error) { v, err := s.NextTopicID(); return uint64(v), err },
		"group":       func() (uint64, error) { v, err := s.NextGroupID(); return uint64(v), err },
		"bucket":      func() (uint64, error) { return s.NextBucket(1) },
		"dead letter": func() (uint64, error) { return s.NextDeadLetter(1) },
	} {
		if v, err := next(); v != 1 || err != nil {
			t.Errorf("next %s: %d, %v, want 1", name, v, err)
		}
	}
}

// TestDeleteMessages on both sides of the bound between single and range deletes.
func TestDeleteMessages(t *testing.T) {
	t.Parallel()
	for _, n := range []uint64{1, maxSingleDeletes, maxSingleDeletes + 1, 200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s := openMem(t, vfs.NewMem())
			const more = 3
			write(t, s, Durable, func(b *Batch) {
				for off := range n + more {
					b.PutMessage(bucket7, off, message(fmt.Sprint(off)))
					b.PutMessage(bucket7+1, off, message("other"))
				}
			})
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
			write(t, s, Written, func(b *Batch) {
				b.DeleteMessages(bucket7, 1, n+1)
				b.DeleteMessages(bucket7, 9, 9) // nothing
				b.DeleteMessages(bucket7, 9, 2) // nothing
			})
			check := func() {
				t.Helper()
				ms, err := s.messages(bucket7, 0, math.MaxInt)
				if err != nil {
					t.Fatal(err)
				}
				var offs []uint64
				for _, m := range ms {
					offs = append(offs, m.Offset)
				}
				if want := []uint64{0, n + 1, n + 2}; !slices.Equal(offs, want) {
					t.Errorf("left are %v, want %v", offs, want)
				}
				if others, err := s.messages(bucket7+1, 0, math.MaxInt); err != nil || len(others) != int(n+more) {
					t.Errorf("the next bucket has %d messages, %v, want %d", len(others), err, n+more)
				}
			}
			check()
			if err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
				t.Fatal(err)
			}
			check()
		})
	}
}

func TestMessagesFromAndLimit(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	write(t, s, Written, func(b *Batch) {
		for off := range uint64(10) {
			b.PutMessage(bucket7, off, message(fmt.Sprint(off)))
		}
	})
	for _, c := range []struct {
		from  uint64
		limit int
		want  []string
	}{
		{0, 2, []string{"0", "1"}}, {8, 5, []string{"8", "9"}}, {10, 5, nil}, {0, 0, nil}, {0, -1, nil},
	} {
		ms, err := s.messages(bucket7, c.from, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range ms {
			ids = append(ids, m.Message.ID)
		}
		if !slices.Equal(ids, c.want) {
			t.Errorf("from %d, at most %d: got %v, want %v", c.from, c.limit, ids, c.want)
		}
	}
}

func TestBucketsByPrefix(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	write(t, s, Written, func(b *Batch) {
		for i, name := range []string{"a", "a1", "a2", "ab", "b"} {
			b.PutBucket(&Bucket{ID: bucketID(3, uint64(i+1)), Name: name, Cell: lite.Cell{User: name}})
		}
		b.PutBucket(&Bucket{ID: bucketID(4, 1), Name: "a3"})
		b.PutBucket(&Bucket{ID: bucketID(math.MaxUint16, 1), Name: "z"})
	})
	for _, c := range []struct {
		topic         uint16
		prefix, after string
		limit         int
		want          []string
	}{
		{3, "", "", 10, []string{"a", "a1", "a2", "ab", "b"}},
		{3, "", "a1", 2, []string{"a2", "ab"}},
		{3, "a", "", 10, []string{"a", "a1", "a2", "ab"}},
		{3, "a", "a", 10, []string{"a1", "a2", "ab"}},
		{3, "a", "a1x", 10, []string{"a2", "ab"}},
		{3, "b", "a", 10, []string{"b"}},
		{3, "b", "b", 10, nil},
		{3, "c", "", 10, nil},
		{3, "a", "", 0, nil},
		{math.MaxUint16, "", "", 10, []string{"z"}},
	} {
		bs, err := s.BucketsByPrefix(c.topic, c.prefix, c.after, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, b := range bs {
			names = append(names, b.Name)
		}
		if !slices.Equal(names, c.want) {
			t.Errorf("topic %d, prefix %q, after %q, at most %d: got %v, want %v", c.topic, c.prefix, c.after, c.limit, names, c.want)
		}
	}
}

// TestDueExpiry: never early, whatever the fractions of a second.
func TestDueExpiry(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	half := noon.Add(500 * time.Millisecond)
	write(t, s, Written, func(b *Batch) {
		b.PutExpiry(&Expiry{At: noon, Bucket: 1, Name: "whole"})
		b.PutExpiry(&Expiry{At: half, Bucket: 2, Name: "half"})
		b.PutExpiry(&Expiry{At: noon.Add(time.Hour), Bucket: 3, Name: "later"})
	})
	due := func(now time.Time, limit int) []string {
		t.Helper()
		es, err := dueExpiry(s, now, limit)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range es {
			names = append(names, e.Name)
		}
		return names
	}
	for _, c := range []struct {
		now   time.Time
		limit int
		want  []string
	}{
		{noon.Add(-1), 10, nil},
		{noon, 10, []string{"whole"}},
		{half, 10, []string{"whole"}},
		{noon.Add(time.Second), 10, []string{"whole", "half"}},
		{noon.Add(time.Second), 1, []string{"whole"}},
		{noon.Add(time.Hour), 10, []string{"whole", "half", "later"}},
		{time.Unix(-5, 0), 10, nil},
	} {
		if got := due(c.now, c.limit); !slices.Equal(got, c.want) {
			t.Errorf("due at %v: %v, want %v", c.now, got, c.want)
		}
	}
	// Deleting works with the time that was put and with the one that came back.
	es, err := dueExpiry(s, noon.Add(time.Second), 10)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, Written, func(b *Batch) {
		b.DeleteExpiry(es[1].At, 2)
		b.DeleteExpiry(noon, 1)
	})
	if got := due(noon.Add(time.Hour), 10); !slices.Equal(got, []string{"later"}) {
		t.Errorf("left are %v", got)
	}
}

// fillTopicAndGroup writes something of everything that belongs to a topic and a group.
func fillTopicAndGroup(b *Batch, topic uint16, group uint32) {
	id := bucketID(topic, 1)
	b.PutTopic(&Topic{ID: topic, Name: fmt.Sprint("t", topic)})
	b.PutGroup(&Group{ID: group, Name: fmt.Sprint("g", group)})
	b.PutNextBucket(topic, 2)
	b.PutBucket(&Bucket{ID: id, Name: "n"})
	b.PutMessage(id, 1, message("m"))
	b.PutCursor(&Cursor{Group: group, Bucket: id})
	b.PutLease(&Lease{Group: group, Bucket: id})
	b.PutHold(&Hold{Group: group, Name: "n"})
	b.PutSubscription(&Subscription{Group: group, Client: "c"})
	b.PutAccount(&Account{Group: group, Scope: 1, Name: "u", Data: []byte{1}})
	b.PutDeadLetter(&DeadLetter{Group: group, Seq: 1, Message: message("m")})
}

func countKeys(t *testing.T, s *Store) int {
	t.Helper()
	n := 0
	if err := s.scan(nil, nil, func(_, _ []byte) (bool, error) { n++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDeleteTopicAndGroup leaves nothing of them, and all of their neighbours.
func TestDeleteTopicAndGroup(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	empty := countKeys(t, s)
	write(t, s, Written, func(b *Batch) {
		fillTopicAndGroup(b, 1, 10)
		fillTopicAndGroup(b, 3, 12)
	})
	without := countKeys(t, s)
	write(t, s, Written, func(b *Batch) { fillTopicAndGroup(b, 2, 11) })
	write(t, s, Durable, func(b *Batch) {
		b.DeleteTopic(&Topic{ID: 2, Name: "t2"})
		b.DeleteGroup(&Group{ID: 11, Name: "g11"})
	})
	if n := countKeys(t, s); n != without {
		t.Errorf("%d keys, want %d", n, without)
	}
	write(t, s, Durable, func(b *Batch) {
		b.DeleteTopic(&Topic{ID: 1, Name: "t1"})
		b.DeleteTopic(&Topic{ID: 3, Name: "t3"})
		b.DeleteGroup(&Group{ID: 10, Name: "g10"})
		b.DeleteGroup(&Group{ID: 12, Name: "g12"})
	})
	if n := countKeys(t, s); n != empty {
		t.Errorf("%d keys, want %d", n, empty)
	}
}

func TestDeleteEach(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	write(t, s, Written, func(b *Batch) { fillTopicAndGroup(b, 1, 10); b.PutExpiry(&Expiry{At: noon, Bucket: 1}) })
	before := countKeys(t, s)
	id := bucketID(1, 1)
	for i, del := range []func(b *Batch){
		func(b *Batch) { b.DeleteBucket(1, "n") },
		func(b *Batch) { b.DeleteMessages(id, 1, 2) },
		func(b *Batch) { b.DeleteCursor(10, id) },
		func(b *Batch) { b.DeleteLease(10, id, 0) },
		func(b *Batch) { b.DeleteHold(10, 0, "n") },
		func(b *Batch) { b.DeleteSubscription(10, "c") },
		func(b *Batch) { b.DeleteAccount(10, 1, "u") },
		func(b *Batch) { b.DeleteDeadLetter(10, 1) },
		func(b *Batch) { b.DeleteExpiry(noon, 1) },
	} {
		write(t, s, Written, del)
		if n := countKeys(t, s); n != before-1-i {
			t.Errorf("deletion %d: %d keys left, want %d", i, n, before-1-i)
		}
	}
	if next, err := s.NextDeadLetter(10); err != nil || next != 2 {
		t.Errorf("next dead letter %d, %v: a number may come again", next, err)
	}
}

// TestLargeBatch is larger than the memtable, as a batch of big bodies may be (C120).
func TestLargeBatch(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	s := openMem(t, fs)
	body := make([]byte, 64<<10)
	for _, d := range []Durability{Written, Durable} {
		write(t, s, d, func(b *Batch) {
			for off := range uint64(20) {
				b.PutMessage(uint64(d), off, &Message{Body: body})
			}
		})
	}
	crashed := openMem(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	for _, s := range []*Store{s, crashed} {
		for _, d := range []Durability{Written, Durable} {
			if ms, err := s.messages(uint64(d), 0, 100); err != nil || len(ms) != 20 || len(ms[19].Message.Body) != len(body) {
				t.Errorf("%d messages, %v, want 20", len(ms), err)
			}
		}
	}
}

func TestBatchLife(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	b := s.NewBatch()
	if !b.Empty() {
		t.Error("a new batch is not empty")
	}
	if err := s.Apply(b, Durable); err != nil {
		t.Errorf("apply nothing: %v", err)
	}
	if err := s.Apply(b, Durable); err == nil {
		t.Error("applied twice")
	}
	if err := errors.Join(b.Wait(), b.Wait(), b.Close()); err != nil {
		t.Error(err)
	}
	if n := s.Metrics().DurablePending; n != 0 {
		t.Errorf("%d durable batches pending", n)
	}
	b = s.NewBatch()
	b.PutHold(&Hold{Name: "dropped"})
	if err := b.Close(); err != nil { // never applied
		t.Error(err)
	}
	if err := s.EachHold(0, func(h Hold) bool { t.Errorf("found %+v", h); return true }); err != nil {
		t.Error(err)
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	s := openMem(t, vfs.NewMem())
	b := s.NewBatch()
	b.PutHold(&Hold{Name: "late"})
	defer func() { _ = b.Close() }()
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(b, Written); !errors.Is(err, ErrClosed) {
		t.Errorf("apply: %v", err)
	}
	if _, err := s.Message(1, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("message: %v", err)
	}
	if _, _, err := s.Bucket(1, "a"); !errors.Is(err, ErrClosed) {
		t.Errorf("bucket: %v", err)
	}
	if err := s.EachTopic(func(Topic) bool { return true }); !errors.Is(err, ErrClosed) {
		t.Errorf("topics: %v", err)
	}
	s.Metrics() // must not touch the closed engine
}

// dueExpiry is Store.DueExpiry from the beginning of the table.
func dueExpiry(s *Store, now time.Time, limit int) ([]Expiry, error) {
	due, _, err := s.DueExpiry(ExpiryPlace{}, now, limit)
	return due, err
}
