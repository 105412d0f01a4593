package broker_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
)

// The tables of a store, as broker/store/DESIGN.md names their keys.
const (
	tableBucket       = 0x04
	tableMessage      = 0x05
	tableCursor       = 0x06
	tableLease        = 0x07
	tableHold         = 0x08
	tableExpiry       = 0x09
	tableDeadLetter   = 0x0a
	tableSubscription = 0x0b
	tableAccount      = 0x0c
)

// spoil overwrites the first n records of a table of a closed store with bytes that no
// encoder writes, and returns how many there were. A table without a record is given one.
func spoil(t *testing.T, fs vfs.FS, table byte, n int) {
	t.Helper()
	db, err := pebble.Open("data", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatColumnarBlocks, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
	if err != nil {
		t.Fatal(err)
	}
	var keys [][]byte
	for ok := it.First(); ok && len(keys) < n; ok = it.Next() {
		keys = append(keys, bytes.Clone(it.Key()))
	}
	err = it.Close()
	if len(keys) == 0 && table == tableExpiry {
		keys = [][]byte{{table, 0, 0, 0, 0, 1}} // long due
	} else if len(keys) == 0 {
		keys = [][]byte{append([]byte{table}, "\x00\x00\x00\x01 of group 1"...)}
	}
	for _, key := range keys {
		err = errors.Join(err, db.Set(key, []byte("\xffspoiled"), pebble.Sync))
	}
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// TestTimesBeyond2262: a sender may write any year up to 9999 as a birth time, and "never"
// as the largest number it has. Both are stored so that they can be read, by deliveries,
// by dead letters, and by the next start.
func TestTimesBeyond2262(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, options(fs))
		msgs := make([]broker.Message, 0, 4)
		for i, deadline := range []string{"9223372036854775807", "32503680000000", "9007199254740991", "9223372036854"} {
			msgs = append(msgs, broker.Message{
				Lite: fmt.Sprint("b", i), ID: deadline, Body: []byte("x"), Born: time.Date(3000+2000*i, 1, 1, 0, 0, 0, 0, time.UTC),
				Properties: map[string]string{lite.PropertyDeadline: deadline},
			})
		}
		if _, err := b.Send(t.Context(), topic, msgs); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		got := poll(t, b, 10, 0) // from the cache
		if len(got) != 4 {
			t.Fatalf("%d of 4 messages without a deadline were delivered", len(got))
		}
		if err := b.DeadLetter(t.Context(), topic, group, got[0].Handle, "test"); err != nil {
			t.Fatal(err)
		}
		closeBroker(t, b)
		b = open(t, options(fs))
		dead, err := b.DeadLetters(t.Context(), group, 0, 10)
		if err != nil || len(dead) != 1 || dead[0].Unreadable != nil || dead[0].Message.ID != got[0].ID {
			t.Errorf("dead letters after a restart: %+v, %v", dead, err)
		}
		time.Sleep(2 * time.Minute) // the leases end
		again := poll(t, b, 10, 0)  // from the disk
		if len(again) != 3 {
			t.Errorf("%d of 3 messages were delivered after a restart", len(again))
		}
		for _, d := range again {
			if y := d.Born.Year(); y != 2262 {
				t.Errorf("born in %d, want the last year that a record holds", y)
			}
		}
		for _, v := range []string{"0", "-5", "never", "9223372036854775808"} {
			m := broker.Message{Lite: "x", ID: "x", Body: []byte("x"), Properties: map[string]string{lite.PropertyDeadline: v}}
			_, err := b.Send(t.Context(), topic, []broker.Message{m})
			if !errors.Is(err, broker.ErrInvalidArgument) || !strings.Contains(err.Error(), lite.PropertyDeadline) || !strings.Contains(err.Error(), v) {
				t.Errorf("deadline %q: error %v does not name property and value", v, err)
			}
		}
		closeBroker(t, b)
	})
}

// TestBadRecordCostsOneRecord spoils one record of each table that is not a topic or group.
// The broker opens, counts the spoiled records, and delivers the readable messages.
func TestBadRecordCostsOneRecord(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]byte{
		"bucket": tableBucket, "message": tableMessage, "cursor": tableCursor, "lease": tableLease, "hold": tableHold,
		"expiry": tableExpiry, "dead letter": tableDeadLetter, "subscription": tableSubscription, "account": tableAccount,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { badRecord(t, table) })
		})
	}
}

func badRecord(t *testing.T, table byte) {
	t.Helper()
	fs := vfs.NewMem()
	o := options(fs)
	o.Topics[0].TTL = time.Hour
	b := open(t, o)
	send(t, b, "1", "a", "b", "c", "d", "e", "f")
	got := poll(t, b, 3, 0)
	for _, d := range got[:2] {
		if err := b.DeadLetter(t.Context(), topic, group, d.Handle, "test"); err != nil {
			t.Fatal(err)
		}
	}
	send(t, b, "2", "a", "b", "c")
	for _, name := range []string{"x", "y"} {
		if _, err := b.HoldFor(t.Context(), topic, group, suspend.Target{Scope: suspend.Column, Name: name}, time.Hour, "test", ""); err != nil {
			t.Fatal(err)
		}
	}
	closeBroker(t, b)
	spoil(t, fs, table, 1)

	b = open(t, o)
	time.Sleep(2 * time.Hour) // leases end, and the entries of the expiry index are due
	drained := drain(t, b)
	total := 0
	for _, bodies := range drained {
		total += len(bodies)
	}
	// 9 were sent, 2 are dead letters. A spoiled message or bucket costs its content.
	want := map[byte]int{tableMessage: 6, tableBucket: 6}[table]
	if want == 0 {
		want = 7
	}
	if total != want {
		t.Errorf("%d messages were delivered, want %d: %v", total, want, drained)
	}
	dead, err := b.DeadLetters(t.Context(), group, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	letters := slices.DeleteFunc(slices.Clone(dead), func(d broker.DeadLetter) bool { return d.Unreadable != nil })
	if table == tableDeadLetter {
		if len(dead) != 2 || len(letters) != 1 {
			t.Errorf("dead letters %+v, want one of two to be unreadable", dead)
		}
		done, err := b.Redrive(t.Context(), group, []uint64{dead[0].Seq, dead[1].Seq})
		if err != nil || done != (broker.Redriven{Sent: 1, Unreadable: 1}) {
			t.Errorf("redrive: %+v, %v", done, err)
		}
	}
	if table == tableMessage {
		last := dead[len(dead)-1]
		if len(dead) != 3 || last.Reason != broker.ReasonUnreadable || last.Attempts != 1 || string(last.Message.Body) != "\xffspoiled" {
			t.Errorf("dead letters %+v, want the spoiled message at its first delivery, with the bytes of its record", dead)
		}
		if n := b.Metrics().Unreadable.Load(); n != 1 {
			t.Errorf("%d messages are counted as unreadable", n)
		}
	}
	s, err := b.Stats(t.Context())
	if err != nil || s.Store.BadRecords == 0 {
		t.Errorf("no bad record is counted: %+v, %v", s.Store, err)
	}
	closeBroker(t, b)
}

// TestLoweredTTLReachesMoreBucketsThanABatch: a start with a lower TTL moves idle buckets
// in the expiry index in batches, the last of which is not full.
func TestLoweredTTLReachesMoreBucketsThanABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		o := options(fs)
		b := open(t, o)
		names := bucketNames(2500)
		for part := range slices.Chunk(names, 500) {
			send(t, b, "1", part...)
		}
		if n := len(drain(t, b)); n != len(names) {
			t.Fatalf("%d of %d buckets were drained", n, len(names))
		}
		closeBroker(t, b)
		o.Topics[0].TTL = time.Minute
		b = open(t, o)
		time.Sleep(2 * time.Minute)
		if s := stats(t, b); s.Buckets != 0 {
			t.Errorf("%d buckets are left", s.Buckets)
		}
		closeBroker(t, b)
	})
}
