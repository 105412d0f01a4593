package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

func openBench(b *testing.B, tune func(*pebble.Options)) *Store {
	b.Helper()
	s, err := open(context.Background(), Options{Dir: b.TempDir()}.withDefaults(), tune)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// BenchmarkBacklog is the life of a message behind a backlog of 256 MiB, which is
// what reaches tables at all: put, read, delete, spread over a thousand buckets.
// DESIGN.md has the figures with and without value separation.
func BenchmarkBacklog(b *testing.B) {
	separate := func(o *pebble.Options) {
		o.FormatMajorVersion = pebble.FormatValueSeparation
		o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
			return pebble.ValueSeparationPolicy{
				Enabled: true, MinimumSize: 512, MaxBlobReferenceDepth: 10,
				RewriteMinimumAge: 10 * time.Second, TargetGarbageRatio: 0.2,
			}
		}
	}
	for _, size := range []int{1 << 10, 64 << 10} {
		for _, c := range []struct {
			name string
			tune func(*pebble.Options)
		}{{"inline", nil}, {"separate", separate}} {
			b.Run(fmt.Sprintf("body=%dKiB/%s", size>>10, c.name), func(b *testing.B) {
				backlog(b, openBench(b, c.tune), size, 256<<20/size)
			})
		}
	}
}

func backlog(b *testing.B, s *Store, size, depth int) {
	b.Helper()
	const buckets, perBatch = 1000, 16
	rng := rand.New(rand.NewPCG(1, 1))
	body := make([]byte, size+1<<20)
	for i := range body {
		body[i] = byte(rng.Uint32())
	}
	place := func(n int) (bucket, offset uint64) { return bucketID(1, uint64(n%buckets)), uint64(n / buckets) }
	put := func(t *Batch, n int) {
		bucket, offset := place(n)
		at := rng.IntN(1 << 20)
		t.PutMessage(bucket, offset, &Message{ID: "01ABCDEF", Body: body[at : at+size]})
	}
	n := 0
	step := func(settle bool) {
		write(b, s, Written, func(t *Batch) {
			for range perBatch {
				put(t, n)
				if settle {
					bucket, offset := place(n - depth)
					if _, err := s.Message(bucket, offset); err != nil {
						b.Fatal(err)
					}
					t.DeleteMessages(bucket, offset, offset+1)
				}
				n++
			}
		})
	}
	for n < depth {
		step(false)
	}
	b.SetBytes(int64(perBatch * size))
	b.ResetTimer()
	for b.Loop() {
		step(true)
	}
	b.StopTimer()
	m := s.db.Metrics()
	total := m.Total()
	b.ReportMetric(float64(total.TableBytesFlushed+total.BlobBytesFlushed+total.TableBytesCompacted+total.BlobBytesCompacted)/float64(n*size), "table-writes/byte")
	b.ReportMetric(float64(m.DiskSpaceUsage())/float64(depth*size), "disk/byte")
}

// BenchmarkNewBucket asks for names that do not exist, among a million that do: what
// the first message of a bucket costs more than the next.
func BenchmarkNewBucket(b *testing.B) {
	s := openBench(b, nil)
	const n = 1_000_000
	for i := 0; i < n; {
		write(b, s, Written, func(t *Batch) {
			for range 1000 {
				t.PutBucket(&Bucket{ID: bucketID(1, uint64(i)), Name: fmt.Sprintf("user-%07d__gpt-4o", i), Tail: 1})
				i++
			}
		})
	}
	if err := s.db.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := s.db.Compact(b.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct{ name, format string }{{"new", "user-%07d__gpt-4x"}, {"existing", "user-%07d__gpt-4o"}} {
		b.Run(c.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(2, 2))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := s.Bucket(1, fmt.Sprintf(c.format, rng.IntN(n))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkApply is one owner's turn: a few messages and acks in one batch.
func BenchmarkApply(b *testing.B) {
	for _, class := range []Durability{Written, Durable} {
		b.Run([]string{"written", "durable"}[class], func(b *testing.B) {
			s := openBench(b, nil)
			m := sampleMessage()
			m.Body = make([]byte, 1<<10)
			off := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				write(b, s, class, func(t *Batch) {
					t.PutMessage(1, off, &m)
					t.PutBucket(&Bucket{ID: 1, Name: "alice__gpt-4o", Tail: off + 1})
					t.DeleteMessages(1, off, off+1)
				})
				off++
			}
		})
	}
}

func BenchmarkMessageCodec(b *testing.B) {
	m := sampleMessage()
	m.Body = make([]byte, 1<<10)
	b.Run("encode", func(b *testing.B) {
		var buf []byte
		b.ReportAllocs()
		for b.Loop() {
			buf = m.appendValue(buf[:0])
		}
	})
	b.Run("decode", func(b *testing.B) {
		value := m.appendValue(nil)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decodeMessage(value); err != nil {
				b.Fatal(err)
			}
		}
	})
}
