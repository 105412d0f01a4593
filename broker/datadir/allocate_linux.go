package datadir

import (
	"errors"
	"os"
	"syscall"
)

// allocate reserves blocks for a file without writing them.
func allocate(f *os.File, size int64) error {
	err := syscall.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return errors.ErrUnsupported
	}
	return err //nolint:wrapcheck // the caller names the file
}
