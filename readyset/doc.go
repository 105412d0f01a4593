// Package readyset says whose turn it is.
//
// It owns the ready matrix of one consumer: columns that take turns, in a column
// four levels, in a level rounds of entries; beside it the entries that are parked
// on closed gates. It never looks at what an entry stands for, reads a clock or
// decides whether a gate is open: package broker/dispatch, its caller, does. A Set
// is owned by one goroutine.
//
// Entries are intrusive: the caller embeds an Entry in its own value, so that being
// ready costs no allocation and there is no capacity that could overflow. Nothing is
// searched for: every operation is O(1), amortised. DESIGN.md has the states and the reasons.
package readyset
