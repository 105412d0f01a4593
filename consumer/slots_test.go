package consumer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestASlotGoesToWhoWaitedLongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newModelSlots()
		first, err := s.acquire(t.Context(), "m", 2, time.Second)
		if err != nil || first == nil {
			t.Fatal(err)
		}
		second, _ := s.acquire(t.Context(), "m", 2, time.Second)
		got := make(chan int, 2)
		for i := range 2 {
			go func() {
				free, err := s.acquire(t.Context(), "m", 2, time.Second)
				if free == nil || err != nil {
					t.Errorf("waiter %d got nothing: %v", i, err)
					return
				}
				got <- i
			}()
			synctest.Wait()
		}
		if free, err := s.acquire(t.Context(), "m", 2, time.Second); free != nil || err != nil {
			t.Fatal("a third may not wait: it would take a worker from other models")
		}
		if free, _ := s.acquire(t.Context(), "other", 2, time.Second); free == nil {
			t.Fatal("a full model closes another")
		}
		first()
		if i := <-got; i != 0 {
			t.Fatalf("waiter %d was first", i)
		}
		second()
		<-got
	})
}

func TestAWaitForASlotEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newModelSlots()
		free, _ := s.acquire(t.Context(), "m", 1, time.Second)
		begin := time.Now()
		if got, err := s.acquire(t.Context(), "m", 1, time.Second); got != nil || err != nil {
			t.Fatal("got a slot that is taken")
		}
		if waited := time.Since(begin); waited != time.Second {
			t.Fatalf("waited %s", waited)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errDeadline)
		defer cancel()
		if _, err := s.acquire(ctx, "m", 1, time.Second); !errors.Is(err, errDeadline) {
			t.Fatalf("got %v, want the deadline", err)
		}
		free()
		if n := s.running(); n != 0 || len(s.models) != 0 {
			t.Fatalf("%d running, %d models remembered", n, len(s.models))
		}
	})
}

// A slot that comes in the same moment as the end of the wait must not be lost.
func TestASlotThatComesTooLateIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newModelSlots()
		for range 200 {
			free, _ := s.acquire(t.Context(), "m", 1, time.Second)
			done := make(chan struct{})
			go func() {
				defer close(done)
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if got, _ := s.acquire(ctx, "m", 1, time.Millisecond); got != nil {
					got()
				}
			}()
			time.Sleep(time.Millisecond)
			free()
			<-done
			if n := s.running(); n != 0 {
				t.Fatalf("%d slots are lost", n)
			}
		}
	})
}

// running is the number of slots taken, of all models.
func (m *modelSlots) running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, q := range m.models {
		n += q.running
	}
	return n
}
