package dispatch

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"
)

// BenchmarkLife takes one message through its life: append, durable, match, ack,
// with a Take for each turn of 64 messages as an owner loop has them. Every bucket
// holds a message when it begins, and one more while it is served. The cost must not
// follow the number of buckets.
func BenchmarkLife(b *testing.B) {
	for _, n := range []int{5_000, 1_000_000} {
		b.Run(fmt.Sprint("buckets=", n), func(b *testing.B) {
			m, names, size := filled(b, n)
			benchLife(b, m, names)
			b.ReportMetric(size, "B/bucket")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// turnSize is how many messages a turn of the benchmark takes.
const turnSize = 64

func benchLife(b *testing.B, m *Machine, names []string) {
	b.Helper()
	now := epoch0
	msgs := []MessageMeta{{Size: 1024}}
	items := make([]Item, 0, turnSize)
	at := 0
	b.ReportAllocs()
	for b.Loop() {
		name := names[at%len(names)]
		at++
		a, err := m.Append(now, AppendRequest{Name: name, Cell: cellOf(name), Level: 1, Messages: msgs})
		if err != nil {
			b.Fatal(err)
		}
		m.Durable(now, a.Bucket, a.First+1)
		if at%turnSize > 0 {
			continue
		}
		now = now.Add(time.Millisecond)
		if _, err := m.Pull(now, PullRequest{Group: 1, Client: "c", Max: turnSize, Until: now.Add(time.Second)}); err != nil {
			b.Fatal(err)
		}
		m.Tick(now)
		m.Match(now)
		items = items[:0]
		for _, d := range m.Take().Deliveries {
			items = append(items, d.Items...)
		}
		if len(items) != turnSize {
			b.Fatalf("%d messages of %d", len(items), turnSize)
		}
		for i := range items {
			if err := m.Ack(now, items[i].Handle); err != nil {
				b.Fatal(err)
			}
		}
		m.Take()
	}
}

// filled is a machine with a ready message in each of n buckets, and the memory of one.
func filled(b *testing.B, n int) (*Machine, []string, float64) {
	b.Helper()
	models := []string{"gpt-4o", "llama-3", "mistral", "qwen"}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("user-%07d__%s", i, models[i%len(models)])
	}
	before := heap()
	m := New(TopicConfig{Name: "requests", ID: 1, Epoch: 1, TTL: time.Hour})
	m.AddGroup(wild)
	for i, name := range names {
		a, err := m.Append(epoch0, AppendRequest{Name: name, Cell: cellOf(name), Level: 1, Messages: []MessageMeta{{Size: 1024}}})
		if err != nil {
			b.Fatal(err)
		}
		m.Durable(epoch0, a.Bucket, 1)
		if i%turnSize == 0 {
			m.Match(epoch0)
			m.Take()
		}
	}
	m.Match(epoch0)
	m.Take()
	m.Take()
	size := float64(heap()-before) / float64(n)
	return m, names, size
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// TestMemoryOfABucket holds what a million waiting buckets cost: the objects of one,
// without maps and strings.
func TestMemoryOfABucket(t *testing.T) {
	size := unsafe.Sizeof(bucket{}) + unsafe.Sizeof(cursor{}) + unsafe.Sizeof(run{})
	t.Logf("bucket %d, cursor %d, run %d", unsafe.Sizeof(bucket{}), unsafe.Sizeof(cursor{}), unsafe.Sizeof(run{}))
	// 12 bytes of it are for the cost of the message: without them the loop reads it from the store.
	if size > 328 {
		t.Errorf("a bucket with one message and one group takes %d bytes, want at most 328", size)
	}
}

// BenchmarkSuspend suspends a bucket and lets it come back, with 10,000 others held.
func BenchmarkSuspend(b *testing.B) {
	m, names, _ := filled(b, 20_000)
	now := epoch0
	for _, name := range names[:10_000] {
		if err := m.SetHold(now, 1, bucketHold(name, now.Add(time.Hour))); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Pull(now, PullRequest{Group: 1, Client: "c", Max: 1, Until: now.Add(time.Second)}); err != nil {
			b.Fatal(err)
		}
		m.Match(now)
		it := m.Take().Deliveries[0].Items[0]
		if err := m.Suspend(now, it.Handle, time.Millisecond, "c", ""); err != nil {
			b.Fatal(err)
		}
		now = now.Add(time.Millisecond)
		m.Tick(now)
		m.Take()
	}
}

// BenchmarkRecovery restores a million buckets with a message each.
func BenchmarkRecovery(b *testing.B) {
	states := make([]BucketState, 1_000_000)
	for i := range states {
		name := fmt.Sprintf("user-%07d__gpt-4o", i)
		states[i] = BucketState{ID: BucketID(i), Name: name, Cell: cellOf(name), Tail: 1, Bytes: 1024}
	}
	for b.Loop() {
		m := New(TopicConfig{ID: 1})
		m.AddGroup(wild)
		for i := range states {
			m.RestoreBucket(states[i])
		}
		m.Start(epoch0)
	}
}
