package quota

import (
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// Ledger is the accounts of one consumer group.
type Ledger struct {
	doc *policy.Document
}

// New returns a ledger in which nothing is used.
func New(doc *policy.Document) *Ledger { return &Ledger{doc: doc} }

// Narrow asks the cell and the row of a place whether they are open, and arms the timer of the gate if they are not.
func (l *Ledger) Narrow(now time.Time, p suspend.Place) (Gate, bool) { return Gate{}, false }

// Fits asks the limits whose answer depends on the cost of the ask: fixed windows at release.
func (l *Ledger) Fits(now time.Time, a Ask) (Gate, bool) { return Gate{}, true }

// Charge charges everything that applies, at once, whatever is open.
func (l *Ledger) Charge(now time.Time, a Ask) Ticket { return Ticket{} }

// Wide calls f with the state of the column, the level and the whole that a place belongs to, and arms their timers.
func (l *Ledger) Wide(now time.Time, p suspend.Place, f func(t suspend.Target, closed bool, until time.Time)) {
}

// Look is the state of one target: a gate and true if it is closed. The machine asks after Due or Free named a wide one.
func (l *Ledger) Look(now time.Time, t suspend.Target) (Gate, bool) { return Gate{}, false }

// Free ends what Charge began. It returns the targets that are to be looked at again; valid until the next call.
func (l *Ledger) Free(now time.Time, p suspend.Place, t Ticket, s Settlement) []suspend.Target {
	return nil
}

// Due returns one gate that has to be looked at again at now; false if there is none.
func (l *Ledger) Due(now time.Time) (suspend.Target, bool) { return suspend.Target{}, false }

// Next is the instant at which Due will have something; false if nothing waits for an instant.
func (l *Ledger) Next() (time.Time, bool) { return time.Time{}, false }

// SetPolicy puts another document in force. Accounts follow when they are next asked.
func (l *Ledger) SetPolicy(now time.Time, doc *policy.Document) { l.doc = doc }

// Weight is the share of a place's bucket among those of its column and level.
func (l *Ledger) Weight(p suspend.Place) uint16 { return 1 }

// InFlight is how many messages of a place's bucket may be out at once; def if no rule says.
func (l *Ledger) InFlight(p suspend.Place, def int) int { return def }

// NeedsCost reports whether anything counts more than requests for a place: else the caller need not know the cost.
func (l *Ledger) NeedsCost(p suspend.Place) bool { return false }

// Expect is how many output tokens the next message of a place is expected to cause, of at most maxOutput (0: no bound).
func (l *Ledger) Expect(p suspend.Place, maxOutput int64) int64 { return maxOutput }

// Dirty calls f for the record of every account that was touched since the last call.
func (l *Ledger) Dirty(f func(Record)) {}

// Restore puts back an account as a record says. Counts in flight come from Readmit.
func (l *Ledger) Restore(now time.Time, r Record) error { return nil }

// Readmit counts a message that is out since before a restart.
func (l *Ledger) Readmit(now time.Time, p suspend.Place, t Ticket) {}

// Explain lists the limits of a place with what is used of them.
func (l *Ledger) Explain(now time.Time, p suspend.Place) []Line { return nil }

// Stats are the ledger's totals.
func (l *Ledger) Stats() Stats { return Stats{} }

// Importance is the level of a cell's message: what its sender stamped on it (-1: nothing), or what the policy says.
func (l *Ledger) Importance(c lite.Cell, stamped int8) uint8 { return 1 }

// SetSignal puts a signal in force. What it changes comes out of Due at once.
func (l *Ledger) SetSignal(now time.Time, s signal.Signal) {}

// DropSignal forgets what a source said of a target.
func (l *Ledger) DropSignal(now time.Time, t suspend.Target, source string) {}

// Append appends the ticket's encoding.
func (t Ticket) Append(b []byte) []byte { return b }

// DecodeTicket is the inverse of Append. No bytes are the zero Ticket.
func DecodeTicket(b []byte) (Ticket, error) { return Ticket{}, nil }
