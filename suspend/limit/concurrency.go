package limit

import "fmt"

// Concurrency lets Max asks run at once. It has no clock: it opens when one of them ends. Its state is the number that is
// running, which the caller counts. Max 0 is unlimited.
type Concurrency struct {
	Max int64 // at most MaxLimit
}

// Validate reports as ErrInvalid what is out of bounds.
func (l Concurrency) Validate() error {
	if l.Max < 0 || l.Max > MaxLimit {
		return fmt.Errorf("%w: %d at once, it must be from 0 to %d", ErrInvalid, l.Max, int64(MaxLimit))
	}
	return nil
}

// Open reports whether one more may start beside those that are running.
func (l Concurrency) Open(running int64) bool { return l.Max == 0 || running < l.Max }
