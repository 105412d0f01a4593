package quota

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/penstockmq/penstock/suspend"
)

// park fills a ledger with cells that wait for their rate, users × models.
func park(l *Ledger, now time.Time, places []suspend.Place) {
	for _, p := range places {
		t := l.Charge(now, one(p))
		l.Wide(now, p, func(suspend.Target, bool, time.Time) {})
		l.Free(now, p, t, Settlement{})
		if _, closed := l.Narrow(now, p); !closed {
			panic("open after its one message")
		}
		l.Dirty(func(Record) {})
	}
}

func matrix(users, models int) []suspend.Place {
	places := make([]suspend.Place, 0, users*models)
	names := make([]string, models)
	for i := range names {
		names[i] = fmt.Sprint("m", i)
	}
	for u := range users {
		user := fmt.Sprint("u", u)
		for _, name := range names {
			places = append(places, place(user, name, 1))
		}
	}
	return places
}

// TestAParkedCellIsSmall: a million of them are to fit beside all else that a broker keeps.
func TestAParkedCellIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(account{}); n > 96 {
		t.Errorf("an account is %d bytes, which is more than its size class of 96", n)
	}
	if n := unsafe.Sizeof(rateMeter{}); n > 48 {
		t.Errorf("the meter of a rate is %d bytes, which is more than its size class of 48", n)
	}
	const users, models, most = 250, 200, 250
	places := matrix(users, models)
	l := New(document(t, `limits: [{user: "*", rate: 1/h}]`))
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := used()
	park(l, start, places)
	after := used()
	if got := (after - before) / (users * models); after > before && got > most {
		t.Errorf("a parked cell takes %d bytes, want at most %d", got, most)
	} else {
		t.Logf("a parked cell takes %d bytes", got)
	}
	runtime.KeepAlive(l)
	runtime.KeepAlive(places)
}

// BenchmarkMillionParked is one message through a ledger in which 1,000,000 cells are parked, and as many again have a timer.
func BenchmarkMillionParked(b *testing.B) {
	l := New(document(b, `limits: [{user: "*", rate: 1/h}, {user: busy, rate: 1000000/s}]
columns: [{model: "*", in_flight: 100}]
broker: {quota: 1000000/s}`))
	park(l, start, matrix(1000, 1000))
	p := place("busy", "m1", 1)
	now := start
	for b.Loop() {
		now = now.Add(time.Microsecond)
		message(l, now, p)
	}
}

// BenchmarkMessage is one message through the limits of all scopes.
func BenchmarkMessage(b *testing.B) {
	for name, rules := range map[string]string{
		"none": "",
		"all":  everything,
		"rate": `limits: [{user: "*", rate: 1000000/s}]`,
	} {
		b.Run(name, func(b *testing.B) {
			l := New(document(b, rules))
			places := matrix(100, 50)
			now, i := start, 0
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(10 * time.Microsecond)
				message(l, now, places[i%len(places)])
				i++
			}
		})
	}
}

func message(l *Ledger, now time.Time, p suspend.Place) {
	l.Narrow(now, p)
	a := one(p)
	l.Fits(now, a)
	t := l.Charge(now, a)
	l.Wide(now, p, func(suspend.Target, bool, time.Time) {})
	l.Free(now, p, t, Settlement{})
	l.Dirty(func(Record) {})
	for _, ok := l.Due(now); ok; _, ok = l.Due(now) {
	}
}

// BenchmarkDue is the opening of parked cells, one after the other.
func BenchmarkDue(b *testing.B) {
	places := matrix(1000, 100)
	l := New(document(b, `limits: [{user: "*", rate: 1/h}]`))
	park(l, start, places)
	now := start.Add(time.Hour)
	for b.Loop() {
		if _, ok := l.Due(now); !ok {
			b.StopTimer()
			now = now.Add(time.Hour)
			park(l, now, places)
			now = now.Add(time.Hour)
			b.StartTimer()
		}
	}
}
