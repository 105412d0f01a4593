// Package store owns durability: the records of the broker, their bytes on disk,
// atomic batches and what a restart finds.
//
// It never decides anything about messages, keeps no copy of records in memory, and
// knows nothing of dispatch: identifiers are plain integers. Package broker calls
// it, the owner loops to write, their callers also to read.
//
// Concurrency: a Store may be used by many goroutines at once; a Batch by one at a
// time. What a Batch wrote is visible to reads of this process as soon as Apply
// returns, which is before it is durable: whoever must not act on a write that a
// crash could take back waits for Batch.Wait first.
//
// DESIGN.md in this folder draws the format and goes through the crash points.
package store
