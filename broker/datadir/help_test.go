package datadir

import (
	"os"
	"syscall"
	"testing"
)

func errno(name string) error {
	return map[string]syscall.Errno{
		"EROFS": syscall.EROFS, "ENOSPC": syscall.ENOSPC, "EMFILE": syscall.EMFILE, "EACCES": syscall.EACCES,
	}[name]
}

// allocated is how many bytes of blocks a file has.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
