// Package datadir guards the data folder of a process: one process at a time, a folder
// that can be written, and a reserve of space on its volume.
//
// It opens no file of the store or of JetStream. Package node calls it before those are
// opened and before any port; the commands that work on a data folder without a server
// call it as well. Its functions are safe for concurrent use.
package datadir
