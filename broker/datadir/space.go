package datadir

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
)

// Space is the space on the volume of a folder, in bytes.
type Space struct {
	Free  int64 // available to this process; blocks reserved for root do not count
	Total int64
}

// FreeSpace returns the space on the volume of a folder, which must exist.
func FreeSpace(dir string) (Space, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return Space{}, fmt.Errorf("free space of %s: %w", dir, err)
	}
	block := uint64(s.Bsize)                                                                           //nolint:unconvert // the type differs between systems; never negative
	return Space{Free: bytesOf(uint64(s.Bavail), block), Total: bytesOf(uint64(s.Blocks), block)}, nil //nolint:unconvert // as above
}

func bytesOf(blocks, size uint64) int64 {
	if size > 0 && blocks > math.MaxInt64/size {
		return math.MaxInt64
	}
	return int64(blocks * size)
}

// MaxReserveShare bounds a reserve to one part in this many of its volume.
const MaxReserveShare = 4

// Reserve returns the reserve in force for a configured reserve, in bytes: at most a
// quarter of the volume, so that a small volume is usable at all.
func (s Space) Reserve(configured int64) int64 {
	return min(configured, s.Total/MaxReserveShare)
}

// ballastName is a file that only reserves space. It is removed when the volume is full, so
// that a start has the space that recovery needs.
const ballastName = "penstock.ballast"

// Ballast is the size of the ballast for a reserve: half of it. The rest of the reserve
// is kept as free space.
func Ballast(reserve int64) int64 { return reserve / 2 }

// HasBallast reports whether the folder has its ballast.
func HasBallast(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, ballastName))
	return err == nil && info.Size() > 0
}

// DropBallast removes the ballast, if there is one, and so frees its space.
func DropBallast(dir string) error {
	if err := remove(filepath.Join(dir, ballastName)); err != nil {
		return explain(dir, err)
	}
	return nil
}

// PutBallast reserves size bytes in the folder without writing data. On a file system that
// cannot reserve blocks the error is errors.ErrUnsupported, and there is no ballast.
func PutBallast(dir string, size int64) error {
	path := filepath.Join(dir, ballastName)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return explain(dir, err)
	}
	err = allocate(f, size)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("ballast: %w", err), remove(path)) // a partial ballast is removed
	}
	return nil
}

// Room is FreeSpace plus the ballast of the folder. Reserves are compared with it, so that
// a ballast is a part of the reserve and does not add to it.
func Room(dir string) (Space, error) {
	s, err := FreeSpace(dir)
	if info, statErr := os.Stat(filepath.Join(dir, ballastName)); statErr == nil {
		s.Free += info.Size()
	}
	return s, err
}
