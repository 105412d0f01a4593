package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend/policy"
)

// parkedHour is a policy under which every cell waits an hour for its second message.
const parkedHour = "version: 1\nlimits:\n  - {user: \"*\", rate: 1/1h}\n"

func parse(tb testing.TB, text string) *policy.Document {
	tb.Helper()
	doc, err := policy.Parse([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return doc
}

// parked is a machine with n buckets of two messages, of which the first was served under
// parkedHour: each waits at its own gate. It returns what serving and parking one took.
func parked(b *testing.B, n int) (*Machine, []string, time.Duration) {
	b.Helper()
	m, names, _ := filled(b, n)
	m.SetPolicy(epoch0, parse(b, parkedHour))
	settle(m, epoch0)
	for i, name := range names {
		a, err := m.Append(epoch0, AppendRequest{Name: name, Cell: cellOf(name), Level: -1, Messages: []MessageMeta{{Size: 1024}}})
		if err != nil {
			b.Fatal(err)
		}
		m.Durable(epoch0, a.Bucket, a.First+1)
		if i%turnSize == 0 {
			m.Take()
		}
	}
	begin := time.Now()
	if got := drainReady(b, m, epoch0); got != n {
		b.Fatalf("%d messages of %d", got, n)
	}
	return m, names, time.Since(begin) / time.Duration(n)
}

// settle takes turns until nothing is due.
func settle(m *Machine, now time.Time) (turns int, longest time.Duration) {
	for {
		begin := time.Now()
		m.Tick(now)
		m.Match(now)
		m.Take()
		longest = max(longest, time.Since(begin))
		turns++
		if wake, ok := m.NextWake(); !ok || wake.After(now) {
			return turns, longest
		}
	}
}

// drainReady delivers and acks all that may go.
func drainReady(b *testing.B, m *Machine, now time.Time) int {
	b.Helper()
	total := 0
	items := make([]Item, 0, turnSize)
	for {
		w, err := m.Pull(now, PullRequest{Group: 1, Client: "c", Max: turnSize, Until: now.Add(time.Second)})
		if err != nil {
			b.Fatal(err)
		}
		m.Tick(now)
		m.Match(now)
		items = items[:0]
		for _, d := range m.Take().Deliveries {
			items = append(items, d.Items...)
		}
		if len(items) == 0 {
			m.CancelPull(w)
			return total
		}
		total += len(items)
		for i := range items {
			if err := m.Ack(now, items[i].Handle); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkParked is the life of buckets that wait for limits, beside few others and a
// million: to be served and parked, the review after a change of policy, and the timers that
// all fire at once. Each is for one bucket; so is the memory.
func BenchmarkParked(b *testing.B) {
	for _, n := range []int{5_000, 1_000_000} {
		b.Run(fmt.Sprint("buckets=", n), func(b *testing.B) {
			per := func(d time.Duration, unit string) { b.ReportMetric(float64(d.Nanoseconds())/float64(n), unit) }
			for b.Loop() {
				before := heap()
				m, _, park := parked(b, n)
				settle(m, epoch0.Add(5*time.Second)) // accounts that owe nothing go
				b.ReportMetric(float64(heap()-before)/float64(n), "B/parked")
				b.ReportMetric(float64(park.Nanoseconds()), "ns/park")
				if s := m.Stats().Groups[0]; s.Parked != n || s.Ready != 0 {
					b.Fatalf("%+v, want all parked", s)
				}

				begin := time.Now()
				m.SetPolicy(epoch0, parse(b, parkedHour))
				turns, longest := settle(m, epoch0)
				per(time.Since(begin), "ns/review")
				b.ReportMetric(float64(longest.Microseconds())/1000, "ms/turn")
				if want := n/turnShares.reviews + 1; turns < want {
					b.Fatalf("%d turns for %d buckets", turns, n)
				}

				later := epoch0.Add(time.Hour)
				begin = time.Now()
				settle(m, later)
				per(time.Since(begin), "ns/open")
				if s := m.Stats().Groups[0]; s.Ready != n {
					b.Fatalf("%+v, want all ready", s)
				}
			}
		})
	}
}

// BenchmarkLimitedLife is BenchmarkLife under limits that bind nobody, in each scope.
func BenchmarkLimitedLife(b *testing.B) {
	const roomy = "version: 1\nlimits:\n  - {user: \"*\", rate: 1000000/s, burst: 1s}\nrows:\n  - {user: \"*\", in_flight: 1000}\n" +
		"columns:\n  - {model: \"*\", in_flight: 100000}\nlevels:\n  - {level: 1, quota: 10000000/s}\nbroker: {quota: 10000000/s}\n"
	for _, n := range []int{5_000, 1_000_000} {
		b.Run(fmt.Sprint("buckets=", n), func(b *testing.B) {
			m, names, _ := filled(b, n)
			m.SetPolicy(epoch0, parse(b, roomy))
			settle(m, epoch0)
			benchLife(b, m, names)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// BenchmarkExplain is one answer, with a million buckets parked or five thousand.
func BenchmarkExplain(b *testing.B) {
	m, names, _ := parked(b, 5_000)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, ok := m.Explain(epoch0, 1, names[i%len(names)], NextOffset); !ok {
			b.Fatal("nothing there")
		}
		i++
	}
}
