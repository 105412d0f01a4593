package datadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const childEnv = "PENSTOCK_DATADIR_CHILD"

// TestSecondProcessIsRefusedWithFolderAndPid lets another process hold the folder. The
// error names both, and nothing but the lock file is touched.
// https://github.com/formancehq/ledger/issues/1522
func TestSecondProcessIsRefusedWithFolderAndPid(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		holdUntilStdinCloses(t, dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSecondProcessIsRefusedWithFolderAndPid$")
	child.Env = append(os.Environ(), childEnv+"="+dir)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(stdout, new(string)); err != nil { // "held"
		t.Fatal(err)
	}
	_, err = Acquire(t.Context(), dir, 0)
	want := fmt.Sprintf("%s is open in process %d", dir, child.Process.Pid)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one with %q", err, want)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the refused process left %v, %v", entries, err)
	}
	// The holder ends while the next one waits.
	acquired := make(chan error, 1)
	go func() {
		l, err := Acquire(context.Background(), dir, time.Minute)
		acquired <- errors.Join(err, l.Release())
	}()
	if err := errors.Join(stdin.Close(), child.Wait(), <-acquired); err != nil {
		t.Errorf("after the holder ended: %v", err)
	}
}

func holdUntilStdinCloses(t *testing.T, dir string) {
	t.Helper()
	if _, err := Acquire(t.Context(), dir, 0); err != nil {
		t.Fatal(err)
	}
	fmt.Println("held")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func TestLockIsExclusiveWithinAProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "on", "demand")
	first, err := Acquire(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(t.Context(), dir, 0); !errors.Is(err, ErrInUse) {
		t.Errorf("second: got error %v, want ErrInUse", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Acquire(cancelled, dir, time.Hour); !errors.Is(err, ErrInUse) {
		t.Errorf("told to stop while it waits: got error %v, want ErrInUse", err)
	}
	if err := errors.Join(first.Release(), first.Release()); err != nil {
		t.Fatal(err)
	}
	second, err := Acquire(t.Context(), dir, 0)
	if err := errors.Join(err, second.Release()); err != nil {
		t.Errorf("after the release: %v", err)
	}
}

// TestProbeSaysWhatIsMissing: each way in which a folder cannot be used has its words.
func TestProbeSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ dir, want string }{
		"a file":        {file, "and not a folder"},
		"below a file":  {filepath.Join(file, "x"), "and not a folder"},
		"not writable":  {"/proc/self/penstock", ""}, // words differ between kernels
		"no such place": {"/dev/null/x", "and not a folder"},
	} {
		err := Probe(t.Context(), c.dir)
		if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.dir) {
			t.Errorf("%s: got error %v, want one with %q", name, err, c.want)
		}
	}
	dir := t.TempDir()
	for range 2 {
		if err := Probe(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the probe left %v, %v", entries, err)
	}
}

func TestExplainUsesPlainWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{os.ErrPermission, ""}, // not an errno: passed on as it is
		{&os.PathError{Op: "open", Err: errno("EROFS")}, "read-only file system"},
		{&os.PathError{Op: "write", Err: errno("ENOSPC")}, "no space is left"},
		{&os.PathError{Op: "open", Err: errno("EMFILE")}, "ulimit -n"},
		{&os.PathError{Op: "open", Err: errno("EACCES")}, "not writable by user id"},
	} {
		err := explain("/data", c.err)
		if !errors.Is(err, ErrUnusable) || !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want words %q", c.err, err, c.want)
		}
	}
}

// TestBallastTakesAndGivesRoom asks the file system itself.
func TestBallastTakesAndGivesRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const size = 4 << 20
	if err := PutBallast(dir, size); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the file system of the temporary folder cannot reserve blocks")
	} else if err != nil {
		t.Fatal(err)
	}
	if !HasBallast(dir) {
		t.Error("there is no ballast")
	}
	if blocks := allocated(t, filepath.Join(dir, ballastName)); blocks < size {
		t.Errorf("the ballast has %d bytes of blocks, want %d", blocks, size)
	}
	if err := errors.Join(DropBallast(dir), DropBallast(dir)); err != nil || HasBallast(dir) {
		t.Errorf("after the drop: %v, there %v", err, HasBallast(dir))
	}
	if err := PutBallast(dir, 1<<60); err == nil || HasBallast(dir) {
		t.Errorf("a ballast larger than the volume: %v, there %v", err, HasBallast(dir))
	}
}

func TestReserveLeavesMostOfASmallVolume(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ total, configured, want int64 }{
		{1 << 30, 256 << 20, 256 << 20},
		{64 << 20, 256 << 20, 16 << 20},
		{1 << 40, 256 << 20, 256 << 20},
		{1 << 40, 0, 0},
	} {
		if got := (Space{Total: c.total}).Reserve(c.configured); got != c.want {
			t.Errorf("reserve %d on a volume of %d: got %d, want %d", c.configured, c.total, got, c.want)
		}
	}
	s, err := FreeSpace(t.TempDir())
	if err != nil || s.Free <= 0 || s.Free > s.Total {
		t.Errorf("free space %+v, %v", s, err)
	}
	if _, err := FreeSpace(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a folder that does not exist has free space")
	}
	if got := bytesOf(1<<40, 1<<40); got != 1<<63-1 {
		t.Errorf("an absurd volume has %d bytes", got)
	}
}
