package datadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// ErrUnusable: the data folder cannot be used. The text names the missing property.
var ErrUnusable = errors.New("data folder is unusable")

// probeName is the file that Probe writes. A file left by a crash is overwritten.
const probeName = "penstock.probe"

// Probe does in the folder the same operations as the store: write a file, sync it, rename
// it, sync the folder. The error wraps ErrUnusable and names the missing property in plain
// words. Without Probe a store that cannot be written retries its first flush forever. A
// disk may stall forever; ctx bounds the wait for it.
func Probe(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return explain(dir, err)
	}
	path := filepath.Join(dir, probeName)
	done := make(chan error, 1)
	go func() { done <- errors.Join(probe(dir, path), remove(path), remove(path+".tmp")) }()
	select {
	case err := <-done:
		return explain(dir, err)
	case <-ctx.Done():
		return fmt.Errorf("write a file in %s: %w", absolute(dir), context.Cause(ctx))
	}
}

// probeBytes is more than a file system stores within an inode.
const probeBytes = 16 << 10

func probe(dir, path string) error {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err //nolint:wrapcheck // explain does
	}
	_, err = f.Write(make([]byte, probeBytes))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err //nolint:wrapcheck // explain does
	}
	d, err := os.Open(dir)
	if err != nil {
		return err //nolint:wrapcheck // explain does
	}
	return errors.Join(d.Sync(), d.Close())
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err //nolint:wrapcheck // explain does
	}
	return nil
}

// explain returns an error that says in plain words why a folder cannot be used.
func explain(dir string, err error) error {
	if err == nil {
		return nil
	}
	dir = absolute(dir)
	for _, c := range []struct {
		errno syscall.Errno
		text  string
	}{
		{syscall.EROFS, "it is on a read-only file system"},
		{syscall.ENOSPC, "no space is left on its volume: free some, or give it a larger volume"},
		{syscall.EDQUOT, "the disk quota of its owner is used up"},
		{syscall.EMFILE, "the process has too many open files: raise its limit (ulimit -n)"},
		{syscall.ENFILE, "the machine has too many open files"},
		{syscall.ENOTDIR, "it is, or is below, a file and not a folder"},
		{syscall.EEXIST, "it is a file and not a folder"},
		{syscall.EACCES, fmt.Sprintf("it is not writable by user id %d", os.Geteuid())},
		{syscall.EPERM, fmt.Sprintf("it is not writable by user id %d", os.Geteuid())},
	} {
		if errors.Is(err, c.errno) {
			return fmt.Errorf("%w: %s: %s: %w", ErrUnusable, dir, c.text, err)
		}
	}
	return fmt.Errorf("%w: %s: %w", ErrUnusable, dir, err)
}
