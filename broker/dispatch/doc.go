// Package dispatch decides which message goes to whom, for one parent topic and
// its groups.
//
// It owns the state of every resident bucket: positions, leases, attempts, holds,
// subscriptions and the polls that wait; and for each group the ledger of its limits.
// It is a pure machine: each method is an event with its instant, what follows from
// events is collected, and Take hands it out as an Effects value of writes, deliveries
// and notices. It never reads a clock, does I/O, starts a goroutine or logs, but that
// TopicConfig.CostOf may read a message. Its only caller is the owner loop of package
// broker. Nothing here is safe for concurrent use.
//
// Instants are wall-clock times without a monotonic reading.
//
// DESIGN.md draws the states and says why they are so.
package dispatch
