// Package quota keeps what one consumer group has used of its limits: a ledger of the cells, rows, columns and levels of
// the matrix and of the whole, asked as one and charged together or not at all.
//
// It owns the state of every limit, the count of what is in flight, the timers of closed gates and the factors that
// signals put on columns and levels. It never parks a bucket, picks a message, stores a record or reads a clock: the state
// machine of the parent topic asks it with its own now, closes and opens the gates of its ready set by the answers, and
// writes the records of the accounts that were touched. The consumer pool runs the same ledger for itself where the broker
// has none. A Ledger belongs to one goroutine.
package quota
