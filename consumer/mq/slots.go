package mq

import (
	"context"
	"sync"
)

// slots counts the messages that may still be taken on. A poll takes slots before it asks for messages, so that none
// arrives without a worker, and gives back those it did not need.
type slots struct {
	mu    sync.Mutex // guards the following fields
	free  int
	freed chan struct{} // closed and replaced when free leaves zero
}

func newSlots(n int) *slots { return &slots{free: n, freed: make(chan struct{})} }

// take waits for a free slot and takes up to limit of them; 0 when ctx ends first.
func (s *slots) take(ctx context.Context, limit int) int {
	for {
		s.mu.Lock()
		n := min(s.free, limit)
		s.free -= n
		freed := s.freed
		s.mu.Unlock()
		if n > 0 {
			return n
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return 0
		}
	}
}

func (s *slots) give(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 {
		close(s.freed)
		s.freed = make(chan struct{})
	}
	s.free += n
}
