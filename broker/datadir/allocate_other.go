//go:build !linux

package datadir

import (
	"errors"
	"os"
)

func allocate(*os.File, int64) error { return errors.ErrUnsupported }
