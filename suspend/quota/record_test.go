package quota

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
)

func cellOf(user, model string) lite.Cell { return lite.Cell{User: user, Model: model} }

const everything = `
limits: [{user: "*", rate: 7/s, burst: 300ms, window: 100/1m, window_at: release, quota: 13/s, observed: 50/s, in_flight: 9, tokens: 5000/1m, bytes_in: 1000/s, bytes_out: 1000/s}]
rows: [{user: "*", rate: 11/s, quota: 17/s}]
columns: [{model: "*", rate: 19/s, adaptive: {min: 1, max: 50, start: 20}}]
levels: [{level: 1, quota: 23/s}]
broker: {quota: 100/s, bytes_out: 5000/s}
`

// busy is a ledger in which everything is used a bit, with the records of it.
func busy(t testing.TB) (*desk, map[suspend.Target][]byte) {
	t.Helper()
	d := newDesk(document(t, everything))
	for _, user := range []string{"a", "b"} {
		p := place(user, "m", 1)
		for range 5 {
			ticket := d.Charge(d.now, Ask{Place: p, Cost: Cost{Requests: 3, Tokens: 900, Output: 400, BytesIn: 500}})
			d.now = d.now.Add(30 * time.Millisecond)
			d.Free(d.now, p, ticket, Settlement{Outcome: Used, Tokens: -1, OutputTokens: 90, BytesOut: 800, Feedback: limit.Overload})
		}
	}
	records := map[suspend.Target][]byte{}
	d.Dirty(func(r Record) { records[r.Target] = bytes.Clone(r.Data) })
	return d, records
}

func TestRecordsBringBackWhatWasUsed(t *testing.T) {
	d, records := busy(t)
	if len(records) != 7 {
		t.Errorf("%d records, want those of two cells, two rows, the column, the level and the whole", len(records))
	}
	again := newDesk(document(t, everything))
	again.now = d.now
	for target, data := range records {
		if err := again.Restore(d.now, Record{target, data}); err != nil {
			t.Fatalf("%v: %v", target, err)
		}
		if n := len(data); n > 300 {
			t.Errorf("%v: a record of %d bytes", target, n)
		}
	}
	for _, user := range []string{"a", "b"} {
		p := place(user, "m", 1)
		want, got := d.Explain(d.now, p), again.Explain(d.now, p)
		if len(want) != len(got) {
			t.Fatalf("%d lines, want %d", len(got), len(want))
		}
		for i := range want {
			if strings.HasPrefix(want[i].Value, "floor") {
				continue // a restart forgets what was taken of floors
			}
			if got[i] != want[i] {
				t.Errorf("%s:\n got %+v\nwant %+v", user, got[i], want[i])
			}
		}
		if got, want := again.Expect(p, 0), d.Expect(p, 0); got != want {
			t.Errorf("%s: %d tokens expected, want %d", user, got, want)
		}
	}
	due := map[suspend.Target]bool{}
	for target, ok := again.Due(d.now); ok; target, ok = again.Due(d.now) {
		due[target] = true
	}
	if !due[column] {
		t.Errorf("the column did not come out of Due: %v", due)
	}
}

// A limit is lowered below what its window has let pass already. That is no debt, after a restart neither.
func TestARestartMakesNoDebtOfWhatWasGranted(t *testing.T) {
	lower := document(t, `columns: [{model: m, tokens: 100/1m}]`)
	d := newDesk(document(t, `columns: [{model: m, tokens: 1000/1m}]`))
	d.Charge(d.now, Ask{Place: place("u", "m", 1), Cost: Cost{Requests: 1, Tokens: 900}})
	d.SetPolicy(d.now, lower)
	d.tick()
	again := newDesk(lower)
	d.Dirty(func(r Record) {
		if err := again.Restore(d.now, r); err != nil {
			t.Fatal(err)
		}
	})
	later := d.now.Add(time.Minute)
	for name, l := range map[string]*Ledger{"without": d.Ledger, "after": again.Ledger} {
		if g, closed := l.Look(later, column); closed {
			t.Errorf("%s a restart, closed for another %v", name, g.Until.Sub(later))
		}
	}
}

func TestReadmitCountsInFlight(t *testing.T) {
	d := newDesk(document(t, `columns: [{model: m, in_flight: 1}]`))
	p := place("u", "m", 1)
	ticket, _ := d.try(one(p))
	ticket, err := DecodeTicket(ticket.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	again := newDesk(document(t, `columns: [{model: m, in_flight: 1}]`))
	again.Readmit(again.now, p, ticket)
	again.tick()
	if _, ok := again.try(one(p)); ok {
		t.Error("a second goes while the first is out since before the restart")
	}
	again.free(p, ticket, Settlement{})
	if _, ok := again.try(one(p)); !ok {
		t.Error("kept after the first has ended")
	}
}

func TestBadRecordsAreRefused(t *testing.T) {
	_, records := busy(t)
	cell := suspend.Target{Scope: suspend.Bucket, Name: "a__m"}
	good := records[cell]
	refused := func(name string, r Record) {
		t.Helper()
		l := New(document(t, everything))
		if err := l.Restore(start, r); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if n := l.Stats().Accounts; n != 1+levels {
			t.Errorf("%s: left %d accounts", name, n)
		}
	}
	for n := range good {
		refused("cut short", Record{cell, good[:n]})
	}
	refused("empty", Record{cell, nil})
	refused("of another version", Record{cell, append([]byte{9}, good[1:]...)})
	refused("too long", Record{cell, append(bytes.Clone(good), make([]byte, maxRecordBytes)...)})
	refused("with something after it", Record{cell, append(bytes.Clone(good), 0)})
	state := []byte{byte(kindWindow), 2, 2}
	refused("twice the same kind", Record{cell, append(append([]byte{recordVersion, 0, 2}, state...), state...)})
	refused("an unknown kind", Record{cell, []byte{recordVersion, 0, 1, 200}})
	refused("a kind without a state", Record{cell, []byte{recordVersion, 0, 1, byte(kindInFlight)}})
	refused("a rate of no time", Record{cell, []byte{recordVersion, 0, 1, byte(kindRate), 0, 0, 0, 1, 0}})
	refused("no target", Record{suspend.Target{Scope: suspend.Row}, good})
	if err := New(document(t, everything)).Restore(start, Record{cell, []byte{9}}); !errors.Is(err, ErrRecord) {
		t.Errorf("%v is not ErrRecord", err)
	}
}

func TestARecordThatIsWorthNothingIsDeleted(t *testing.T) {
	d, records := busy(t)
	l := New(document(t, everything))
	cell := suspend.Target{Scope: suspend.Bucket, Name: "a__m"}
	if err := l.Restore(d.now.Add(24*time.Hour), Record{cell, records[cell]}); err != nil {
		t.Fatal(err)
	}
	var got []Record
	l.Dirty(func(r Record) { got = append(got, r) })
	if len(got) != 1 || got[0].Target != cell || got[0].Data != nil {
		t.Errorf("%+v, want the deletion of %v", got, cell)
	}
}

func TestTicketsRoundTrip(t *testing.T) {
	for _, want := range []Ticket{
		{},
		{Requests: 1, Counted: true},
		{Requests: 5, Tokens: 1 << 40, Output: 1 << 39, BytesIn: 1 << 50, Level: 3, Counted: true},
	} {
		b := want.Append([]byte("x"))
		got, err := DecodeTicket(b[1:])
		if err != nil || got != want {
			t.Errorf("%+v %v, want %+v", got, err, want)
		}
	}
	for _, b := range [][]byte{{2}, {1}, {1, 0, 1}, {1, 4, 1, 0, 0, 0}, {1, 0, 1, 1, 2, 0}, {1, 0, 1, 0, 0, 0, 0}} {
		if got, err := DecodeTicket(b); !errors.Is(err, ErrRecord) {
			t.Errorf("% x is %+v, %v", b, got, err)
		}
	}
}

func FuzzRecord(f *testing.F) {
	_, records := busy(f)
	for _, data := range records {
		f.Add(data)
	}
	doc := document(f, everything)
	f.Fuzz(func(t *testing.T, data []byte) {
		l := New(doc)
		p := place("a", "m", 1)
		for scope := range suspend.Scope(scopes) {
			target, _ := p.Target(scope)
			_ = l.Restore(start, Record{target, data})
		}
		// What was accepted must do no harm, whatever it says.
		for _, now := range []time.Time{start, start.Add(time.Minute), start.Add(-time.Hour)} {
			l.Narrow(now, p)
			ticket := l.Charge(now, Ask{Place: p, Cost: Cost{Requests: 2, Tokens: 10, BytesIn: 10}})
			l.Wide(now, p, func(suspend.Target, bool, time.Time) {})
			l.Free(now, p, ticket, Settlement{Outcome: Unsent, BytesOut: 10, Feedback: limit.Good})
			l.Explain(now, p)
			for _, ok := l.Due(now); ok; _, ok = l.Due(now) {
			}
		}
		l.Dirty(func(r Record) {
			if r.Data == nil {
				return
			}
			if _, err := checkRecord(r.Data); err != nil {
				t.Errorf("a record of its own is refused: %v", err)
			}
		})
	})
}

func FuzzTicket(f *testing.F) {
	f.Add(Ticket{Requests: 5, Tokens: 100, Output: 50, BytesIn: 1000, Level: 3, Counted: true}.Append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		ticket, err := DecodeTicket(data)
		if err != nil {
			return
		}
		if again, err := DecodeTicket(ticket.Append(nil)); err != nil || again != ticket {
			t.Errorf("%+v became %+v, %v", ticket, again, err)
		}
	})
}

// TestARecordUnderAnotherPolicy: the rule changed while the broker was down. What is owed is converted once.
func TestARecordUnderAnotherPolicy(t *testing.T) {
	d := newDesk(document(t, `limits: [{user: u, rate: 1/s}]`))
	p := place("u", "m", 1)
	d.Charge(d.now, Ask{Place: p, Cost: Cost{Requests: 20}})
	l := New(document(t, `limits: [{user: u, rate: 10/s}]`))
	d.Dirty(func(r Record) {
		if err := l.Restore(start, r); err != nil {
			t.Fatal(err)
		}
	})
	for _, at := range []time.Duration{0, time.Second, 1900 * time.Millisecond} {
		if g, closed := l.Narrow(start.Add(at), p); !closed || !g.Until.Equal(start.Add(2*time.Second)) {
			t.Errorf("after %v: closed %v until %v, want 2 s", at, closed, g.Until.Sub(start))
		}
	}
}
