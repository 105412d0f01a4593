package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// pollEvery is how often the file is looked at without being told to. Notifications are faster, but do not come for network
	// and some container file systems, nor for a symbolic link whose target lies in another folder.
	pollEvery = 500 * time.Millisecond
	// quiet is how long the folder must have been still before a change is read: an editor writes in several steps.
	quiet = 20 * time.Millisecond
	// busyMax bounds that wait: in a folder that is never still, the file is read anyway.
	busyMax = 200 * time.Millisecond
)

// File is a policy document that follows a file, or a directory whose *.yaml and *.yml files make up one document. A change acts
// within a second; one that cannot be read or parsed is logged, and the document before it stays.
//
// Replace a file by renaming a complete one over it, as editors and Kubernetes do. A file that is written in place may
// be read half-written; then the first half acts, if it happens to be a document, until the second is there. Files of a
// directory that belong together are best swapped together, by a link to their folder, as a ConfigMap volume does.
//
// Current and Changed may be called from any goroutine. All else is owned by the goroutine in Run.
type File struct {
	path      string        // immutable
	log       *slog.Logger  // immutable
	pollEvery time.Duration // immutable once Run runs

	current atomic.Pointer[Document]

	mu      sync.Mutex // guards changed
	changed chan struct{}

	closing   chan struct{} // closed by Close
	closeOnce sync.Once

	seen    []Part // the content that was parsed last, well or not
	failing string // the last read error that was logged; empty after a successful read
}

// Open reads the document at path, a file or a directory. It must be a good one: at start there is none before it. It is
// followed while Run runs.
func Open(path string, log *slog.Logger) (*File, error) {
	parts, err := read(path, nil)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	doc, err := ParseParts(parts)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", path, err)
	}
	f := &File{
		path: path, log: log, pollEvery: pollEvery, seen: parts,
		changed: make(chan struct{}), closing: make(chan struct{}),
	}
	f.current.Store(doc)
	return f, nil
}

// Current is the document in force.
func (f *File) Current() *Document { return f.current.Load() }

// Changed is closed at the next change of Current. To miss none, take it before Current.
func (f *File) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Close ends Run. It may be called more than once, and without Run.
func (f *File) Close() error {
	f.closeOnce.Do(func() { close(f.closing) })
	return nil
}

// Run follows the file until ctx is done or Close is called, and then returns nil. It is to be called once.
func (f *File) Run(ctx context.Context) error {
	events, faults, closeWatch := f.watch()
	defer closeWatch()
	poll := time.NewTicker(f.pollEvery)
	defer poll.Stop()
	for {
		// Before the first wait, too: the file may have changed since Open.
		f.check()
		select {
		case <-ctx.Done():
			return nil
		case <-f.closing:
			return nil
		case <-poll.C:
		case err := <-faults: // such as an overflow; what was missed is found by looking
			f.log.Warn("notifications about the policy file were lost", "path", f.path, "error", err)
		case <-events:
			settleFolder(ctx, events)
		}
	}
}

// watch asks for notifications about the folder, not the file: a rename over the file, or of the link ..data that a
// ConfigMap volume swaps, ends a watch on the file itself. Without notifications polling alone does the work.
func (f *File) watch() (<-chan fsnotify.Event, <-chan error, func()) {
	folder := filepath.Dir(f.path)
	if info, err := os.Stat(f.path); err == nil && info.IsDir() {
		folder = f.path
	}
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(folder); err == nil {
			return w.Events, w.Errors, func() { _ = w.Close() } // nothing is lost with a watcher
		}
		_ = w.Close()
	}
	f.log.Warn("policy file is polled, its folder cannot be watched", "path", f.path, "error", err)
	return nil, nil, func() {}
}

// settleFolder waits until no event has come for a moment. It does not sort events: which names matter depends on links,
// and looking at the file once too often costs nothing.
func settleFolder(ctx context.Context, events <-chan fsnotify.Event) {
	still := time.NewTimer(quiet)
	defer still.Stop()
	latest := time.NewTimer(busyMax)
	defer latest.Stop()
	for {
		select {
		case <-events:
			still.Reset(quiet)
		case <-still.C:
			return
		case <-latest.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// check reads the file once and puts it in force if it is new and good. It compares contents, for neither time nor size need
// change with them.
func (f *File) check() {
	parts, err := read(f.path, f.seen)
	if err != nil {
		f.unreadable(err)
		return
	}
	f.failing = ""
	if sameParts(parts, f.seen) {
		return
	}
	f.seen = parts
	doc, err := ParseParts(parts)
	if err != nil {
		f.log.Error("policy file refused, the policy before it stays", "path", f.path, "error", err)
		return
	}
	f.current.Store(doc)
	f.log.Info("policy changed", "path", f.path, "rules", doc.Len())
	f.announce()
}

// unreadable logs a read error when it is a new one. A file that is missing for a moment between two steps of an editor is
// none: it is reported at the second look.
func (f *File) unreadable(err error) {
	switch msg := err.Error(); {
	case f.failing == "" && errors.Is(err, os.ErrNotExist):
		f.failing = "missing once"
	case f.failing != msg:
		f.failing = msg
		f.log.Error("policy file unreadable, the policy before it stays", "path", f.path, "error", err)
	}
}

func (f *File) announce() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
}
