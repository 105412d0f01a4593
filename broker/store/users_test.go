package store

import (
	"errors"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestCloseWhileInUse: callers that are inside finish, also when they call again
// from a scan; later ones hear ErrClosed; nobody meets the closed engine.
func TestCloseWhileInUse(t *testing.T) {
	t.Parallel()
	for range 20 {
		s := openMem(t, vfs.NewMem())
		write(t, s, Written, func(b *Batch) {
			b.PutHold(&Hold{Group: 1, Name: "a"})
			b.PutHold(&Hold{Group: 1, Name: "b"})
		})
		var wg sync.WaitGroup
		inside := make(chan struct{}, 8)
		for range cap(inside) {
			wg.Go(func() {
				told := false
				for {
					b := s.NewBatch()
					b.PutHold(&Hold{Group: 1, Name: "a"})
					err := s.Apply(b, Written)
					err = errors.Join(err, b.Close(), s.EachHold(1, func(Hold) bool {
						_, _, err := s.Bucket(1, "n")
						return err == nil
					}))
					s.Metrics()
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
					if !told {
						told = true
						inside <- struct{}{}
					}
				}
			})
		}
		for range cap(inside) {
			<-inside
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}
