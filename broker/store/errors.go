package store

import "errors"

var (
	// ErrNotFound: no record has the key that was asked for.
	ErrNotFound = errors.New("record not found")
	// ErrVersion: the folder was written by a version of the program that this one
	// does not understand. Nothing was changed.
	ErrVersion = errors.New("unsupported store version")
	// ErrCorrupt: bytes on disk are not what this package writes.
	ErrCorrupt = errors.New("store is corrupt")
	// ErrInUse: another process, or this one, has the folder open.
	ErrInUse = errors.New("store is in use by another process")
	// ErrFailed: a write or sync of the log failed earlier. What was promised before
	// holds; nothing more is accepted until a restart.
	ErrFailed = errors.New("store failed")
	// ErrStuck: the folder cannot be written, so the data recovered from the log never becomes
	// a table.
	ErrStuck = errors.New("store cannot be written")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
)
