package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// records is a slog.Handler that hands each record to the test.
type records struct {
	slog.Handler
	messages chan string
}

func newRecords() *records {
	return &records{Handler: slog.DiscardHandler, messages: make(chan string, 100)}
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }

func (r *records) Handle(_ context.Context, rec slog.Record) error {
	text := rec.Level.String() + " " + rec.Message
	rec.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	r.messages <- text
	return nil
}

// depthDoc is a document whose only rule is a depth for everybody.
func depthDoc(depth int64) string {
	return fmt.Sprintf("version: 1\nlimits: [{user: '*', depth: %d}]\n", depth)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// unpolled is a poll interval that never comes: the test is about notifications.
const unpolled = time.Hour

// follow opens the file and runs it until the test ends.
func follow(t *testing.T, path string, poll time.Duration) (*File, *records) {
	t.Helper()
	log := newRecords()
	f, err := Open(path, slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	f.pollEvery = poll
	done := make(chan error, 1)
	go func() { done <- f.Run(context.Background()) }()
	t.Cleanup(func() {
		_ = f.Close()
		_ = f.Close() // twice is once
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f, log
}

func depthOf(f *File) int64 { return f.Current().Resolve("u", "m").Depth }

// waitDepth waits for the document with the given depth. The bound is generous; only a change that never acts reaches it.
func waitDepth(t *testing.T, f *File, want int64) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for {
		changed := f.Changed()
		if depthOf(f) == want {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("depth is %d, want %d", depthOf(f), want)
		}
	}
}

func waitMessage(t *testing.T, log *records, part string) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for {
		select {
		case m := <-log.messages:
			if strings.Contains(m, part) {
				return
			}
		case <-deadline.C:
			t.Fatalf("nothing was logged with %q", part)
		}
	}
}

func TestFileFollowsWritesAndRenames(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	write(t, path, depthDoc(1))
	f, _ := follow(t, path, unpolled)
	if depthOf(f) != 1 {
		t.Fatalf("depth is %d at start", depthOf(f))
	}
	write(t, path, depthDoc(2))
	waitDepth(t, f, 2)
	for depth := int64(3); depth < 6; depth++ { // a watch on the file itself dies with the first rename
		write(t, path+".tmp", depthDoc(depth))
		rename(t, path+".tmp", path)
		waitDepth(t, f, depth)
	}
	rename(t, path, path+"~") // as an editor with backups does
	write(t, path, depthDoc(6))
	waitDepth(t, f, 6)
}

// TestFileFollowsConfigMap: a Kubernetes volume never touches the file, it swaps a link to the folder it is in.
func TestFileFollowsConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(depth int64) string {
		name := fmt.Sprintf("..v%d", depth)
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "policy.yaml"), depthDoc(depth))
		return name
	}
	symlink(t, version(1), filepath.Join(dir, "..data"))
	path := filepath.Join(dir, "policy.yaml")
	symlink(t, filepath.Join("..data", "policy.yaml"), path)
	f, _ := follow(t, path, unpolled)
	for depth := int64(2); depth < 4; depth++ {
		symlink(t, version(depth), filepath.Join(dir, "..data_tmp"))
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
		waitDepth(t, f, depth)
	}
}

// TestFileBehindLink: nothing happens in the watched folder when the target of a link lies elsewhere; polling finds it.
func TestFileBehindLink(t *testing.T) {
	target := filepath.Join(t.TempDir(), "real.yaml")
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, target, depthDoc(1))
	symlink(t, target, path)
	f, _ := follow(t, path, pollEvery)
	for depth := int64(2); depth < 4; depth++ { // the first may be found by the look that Run begins with
		write(t, target, depthDoc(depth))
		waitDepth(t, f, depth)
	}
}

// TestFileKeepsLastGoodDocument: neither a bad document, nor an empty one, nor a missing file lifts a limit.
func TestFileKeepsLastGoodDocument(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	write(t, path, depthDoc(1))
	f, log := follow(t, path, pollEvery)
	changed := f.Changed()

	write(t, path, "version: 1\nlimits: [{user: '*', rate: 5}]\n")
	waitMessage(t, log, "limits[0].rate")
	write(t, path, "")
	waitMessage(t, log, "is empty")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	waitMessage(t, log, "unreadable")

	select {
	case <-changed:
		t.Error("a change was announced")
	default:
	}
	if depthOf(f) != 1 {
		t.Errorf("depth is %d", depthOf(f))
	}
	write(t, path, depthDoc(2))
	waitDepth(t, f, 2)
	waitMessage(t, log, "INFO policy changed")
}

// TestCheckOnce: one look logs a fault once, however often it is repeated, and a fault that has gone is a new one when it
// comes back.
func TestCheckOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, depthDoc(1))
	log := newRecords()
	f, err := Open(path, slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	logged := func(want int) {
		t.Helper()
		for range 3 {
			f.check()
		}
		if got := len(log.messages); got != want {
			t.Errorf("%d messages so far, want %d", got, want)
		}
	}
	logged(0)
	write(t, path, "nonsense")
	logged(1)
	write(t, path, depthDoc(1)) // back to what is in force: it takes effect, and says so
	logged(2)
	write(t, path, "nonsense")
	logged(3)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	logged(4)
	write(t, path, depthDoc(2))
	logged(5)
	if depthOf(f) != 2 {
		t.Errorf("depth is %d", depthOf(f))
	}
}

// TestRunSeesWhatChangedBefore: a change between Open and Run is not missed.
func TestRunSeesWhatChangedBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, depthDoc(1))
	f, err := Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, depthDoc(2))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	waitDepth(t, f, 2)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestOpenNeedsAGoodDocument(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none.yaml"), slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	path := filepath.Join(dir, "bad.yaml")
	write(t, path, "version: 9")
	_, err := Open(path, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "bad.yaml") || !strings.Contains(err.Error(), "version") {
		t.Errorf("bad file: %v", err)
	}
}
