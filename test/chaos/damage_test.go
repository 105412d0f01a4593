package chaos

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// damage changes the files of JetStream between two starts. dir is JetStream's folder, before an older copy of the folder,
// made before the requests were accepted.
type damage struct {
	name string
	do   func(dir, before string) error
}

// boundedDamages is the number of damages of the bounded run, from the start of the list.
const boundedDamages = 5

// A power cut loses unflushed bytes, a disk loses or changes flushed ones.
var damages = []damage{
	{"power cut: all files are as before the requests", func(dir, before string) error {
		return errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(before)))
	}},
	{"the newest block lost its second half", func(dir, _ string) error {
		return onNewest(dir, ".blk", func(path string, size int64) error { return os.Truncate(path, size/2) })
	}},
	{"a bit of every block is flipped", func(dir, _ string) error {
		return onAll(dir, ".blk", func(path string, size int64) error { return flip(path, size/2) })
	}},
	{"the descriptions of the streams are empty", func(dir, _ string) error {
		return onAll(dir, "meta.inf", func(path string, _ int64) error { return os.Truncate(path, 0) })
	}},
	{"the folder is gone", func(dir, _ string) error { return os.RemoveAll(dir) }},
	{"the newest block is gone", func(dir, _ string) error {
		return onNewest(dir, ".blk", func(path string, _ int64) error { return os.Remove(path) })
	}},
	{"a bit of the newest block is flipped", func(dir, _ string) error {
		return onNewest(dir, ".blk", func(path string, size int64) error { return flip(path, size/2) })
	}},
	{"the indexes hold something else", func(dir, _ string) error {
		return onAll(dir, ".blk", func(path string, _ int64) error {
			return os.WriteFile(filepath.Join(filepath.Dir(path), "index.db"), []byte("not an index"), 0o600)
		})
	}},
}

// shuffledDamages returns count of the damages in random order.
func shuffledDamages(rng *rand.Rand, count int) []damage {
	list := slices.Clone(damages)
	rng.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
	return list[:count]
}

// flip changes one bit.
func flip(path string, at int64) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[at] ^= 1 << 4
	return os.WriteFile(path, b, 0o600)
}

// files lists the files that are not empty and whose names end in suffix, the newest last.
func files(dir, suffix string) (found []string, err error) {
	changed := map[string]time.Time{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, suffix) {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > 0 {
			found, changed[path] = append(found, path), info.ModTime()
		}
		return err
	})
	slices.SortFunc(found, func(a, b string) int { return changed[a].Compare(changed[b]) })
	return found, err
}

var errNoFile = errors.New("no file to damage")

func onNewest(dir, suffix string, do func(path string, size int64) error) error {
	all, err := files(dir, suffix)
	if err != nil || len(all) == 0 {
		return errors.Join(err, errNoFile)
	}
	return onFile(all[len(all)-1], do)
}

func onAll(dir, suffix string, do func(path string, size int64) error) error {
	all, err := files(dir, suffix)
	if err != nil || len(all) == 0 {
		return errors.Join(err, errNoFile)
	}
	for _, path := range all {
		if err := onFile(path, do); err != nil {
			return err
		}
	}
	return nil
}

func onFile(path string, do func(path string, size int64) error) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return do(path, info.Size())
}

// damagedStreams kills `penstock up` with accepted requests in it, damages the files of JetStream, and starts it again. The
// start succeeds, or ends with an error that names the folder; then the operator removes the folder. Either way all
// accepted requests are answered, and hold and policy are in force.
func damagedStreams(t *testing.T, list []damage) tally {
	t.Helper()
	var sum tally
	j := newJournal(requestLease)
	s := newSystem(t, j, layoutUp, t.TempDir(), startUpstream(t, j).url)
	s.start()
	s.applyPolicy()
	c := newCallers(j, s.http, s.keys)
	c.recordsMayBeGone = true
	dir := filepath.Join(s.data, "nats")
	for _, d := range list {
		t.Log(d.name)
		before := t.TempDir()
		if err := os.CopyFS(before, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		holds := map[string]time.Time{columnShut: s.hold(columnShut, 2*time.Hour)}
		const requests = 5
		for range requests {
			c.later(s.keys[0], columnShut, holds[columnShut], false)
			c.later(s.keys[1], pick([]string{columnNarrow, columnPaced}), time.Time{}, true)
		}
		s.procs[0].kill()
		sum.kills++
		if err := d.do(dir, before); err != nil {
			t.Fatalf("%s: %v", d.name, err)
		}
		sum.damages++
		s.startDamaged(d, dir)
		s.checkState(d.name, holds)
		s.openShut()
		c.settle()
		s.checkEmpty(requestTopic)
		// A request after it is served as before.
		c.later(s.keys[2], columnOpen, time.Time{}, true)
		c.now(s.keys[2], columnOpen, true)
	}
	s.stop()
	return conclude(t, j, sum)
}

// startDamaged starts a process whose files were damaged.
func (s *system) startDamaged(d damage, dir string) {
	s.t.Helper()
	p := s.procs[0]
	err := p.start(startMax)
	if err == nil {
		return
	}
	switch {
	case errors.Is(err, errNotReady):
		p.kill()
		s.j.find(ruleHang, p.name, "%s: %v", d.name, err)
	case !strings.Contains(p.log.tail(400), dir):
		s.j.find(ruleReason, p.name, "%s: the start fails without naming %s: %v", d.name, dir, err)
	default:
		s.t.Logf("%s: %v", d.name, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		s.t.Fatal(err)
	}
	pause(context.Background(), 100*time.Millisecond)
	if err := p.start(startMax); err != nil {
		s.t.Fatalf("%s: with the folder removed: %v", d.name, err)
	}
}
