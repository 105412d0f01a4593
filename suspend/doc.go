// Package suspend keeps which cells, rows, columns and levels of one consumer group are held until when, by whom, why.
//
// It owns the table of holds and the rules for changing it: a worker may lengthen a hold and never shorten one, an
// operator sets and lifts exactly, scopes add up and the latest instant wins. It never stores anything, parks a bucket
// or reads a clock: the state machine of the parent topic calls it with its own now, writes what changed, and opens gates
// as holds fall due. A Table belongs to one goroutine.
//
// # Clocks
//
// Holds end at an instant of the wall clock. If the clock steps forward, a hold ends early by the step and no more. If it
// steps backward, a hold ends late by the step, but never later than the table's maximum after the step: the table
// sees now go back and draws every longer hold in. So a machine that boots with a clock ten years fast and is then
// corrected holds nothing for ten years.
package suspend
