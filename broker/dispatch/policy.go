package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// SetPolicy puts a policy in force, for what is queued too. Columns, levels and the
// whole follow at once. The resident buckets are reviewed by the Ticks that follow,
// some thousands by each: NextWake is now until all are.
func (m *Machine) SetPolicy(now time.Time, doc *policy.Document) {}

// SetSignal puts a load signal in force, in all groups.
func (m *Machine) SetSignal(now time.Time, s signal.Signal) {}

// DropSignal forgets what a source said of a target.
func (m *Machine) DropSignal(now time.Time, t suspend.Target, source string) {}
