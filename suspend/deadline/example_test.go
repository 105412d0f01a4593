package deadline_test

import (
	"fmt"
	"time"

	"github.com/penstockmq/penstock/suspend/deadline"
)

// A loop fires all that is due, then sleeps until Next.
func Example() {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var leases deadline.Heap[string]
	a, b := &deadline.Item[string]{Value: "a"}, &deadline.Item[string]{Value: "b"}
	leases.Set(a, start.Add(time.Second))
	leases.Set(b, start.Add(2*time.Second))
	leases.Set(a, start.Add(3*time.Second)) // renewed

	now := start.Add(2 * time.Second)
	for it := leases.PopDue(now); it != nil; it = leases.PopDue(now) {
		fmt.Println("due:", it.Value)
	}
	next, _ := leases.Next()
	fmt.Println("sleep:", next.Sub(now))
	// Output:
	// due: b
	// sleep: 1s
}
