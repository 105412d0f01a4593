package datadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrInUse: another process uses the data folder.
var ErrInUse = errors.New("data folder is in use")

const (
	// lockName is the locked file. It stays when the lock is released: after a removal two
	// processes could lock two files of the same name.
	lockName = "penstock.lock"
	// lockRetry is the pause between two tries to take the lock.
	lockRetry = 50 * time.Millisecond
	// LockWait is the time for which a start waits for another process to release the data
	// folder: a supervisor may start the next process while the previous one stops.
	LockWait = 3 * time.Second
)

// Lock is the exclusive right to the files of a data folder. The operating system
// releases it when the process ends, however it ends.
type Lock struct {
	file *os.File
}

// Acquire takes the lock of a data folder, and creates a missing folder. It waits up to
// wait for another process to release the lock. The error wraps ErrInUse and names the
// folder and the process that holds it.
func Acquire(ctx context.Context, dir string, wait time.Duration) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:gosec // the folder is the operator's choice
		return nil, explain(dir, err)
	}
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // as above
	if err != nil {
		return nil, explain(dir, err)
	}
	if err := lock(ctx, f, wait); err != nil {
		defer f.Close() //nolint:errcheck // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is open in %s", ErrInUse, absolute(dir), holder(path))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// The process id is only for the error of another process: a full disk may prevent it.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &Lock{f}, nil
}

// lock takes the lock of an open file. flock belongs to the open file, so two servers
// within one process exclude each other as well.
func lock(ctx context.Context, f *os.File, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	retry := time.NewTicker(lockRetry)
	defer retry.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err //nolint:wrapcheck // the caller names the file
		}
		select {
		case <-ctx.Done():
			return err //nolint:wrapcheck // as above
		case <-retry.C:
		}
	}
}

// Release releases the data folder. It may be called twice, and on nil.
func (l *Lock) Release() error {
	if l == nil || l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	if err := f.Close(); err != nil {
		return fmt.Errorf("release data folder: %w", err)
	}
	return nil
}

// holder names the process that wrote the lock file.
func holder(path string) string {
	b, err := os.ReadFile(path) //nolint:gosec // as above
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" {
		return "another process"
	}
	return "process " + pid
}

func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}
