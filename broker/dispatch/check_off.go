//go:build !invariants

package dispatch

import "time"

// check is a no-op in this build; see check_invariants.go.
func (*Machine) check(time.Time) {}
