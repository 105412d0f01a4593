//go:build !invariants

package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend/quota"
)

// audit is what check remembers: nothing.
type audit struct{}

// checkStart is a no-op in this build; see check_invariants.go.
func (*Machine) checkStart(time.Time, *cursor, quota.Ask) {}

// check is a no-op in this build; see check_invariants.go.
func (*Machine) check(time.Time) {}
