package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// LogDamage is the place of damage in the logs of a folder, and the loss of a cut there.
type LogDamage struct {
	Log    string // the file
	Offset int64  // end of its last good batch
	// LostBytes are the bytes of the logs behind Offset, LostBatches the number of good batches
	// in them; these are unusable since batches before them are damaged.
	LostBytes   int64
	LostBatches int
	// Files are the files, beside the logs, in which the cut keeps the removed bytes.
	Files []string
}

// Repair finds the first damage in the logs of a folder that no process has open, and cuts
// the logs off there if cut is set. The bytes behind the damage are kept in files that end
// in .cut. It returns nil when the logs are intact or have at most a torn end, which Open
// handles by itself. It does not find damaged tables.
//
// After a crash in between, the next call completes the cut.
func Repair(dir string, cut bool) (*LogDamage, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("repair store: %w", err)
	}
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if err != nil {
		return nil, fmt.Errorf("repair store %s: %w: %w", dir, ErrInUse, err)
	}
	d, err := repair(dir, cut)
	if err = errors.Join(err, lock.Close()); err != nil {
		return d, fmt.Errorf("repair store %s: %w", dir, err)
	}
	return d, nil
}

func repair(dir string, cut bool) (*LogDamage, error) {
	logs, err := neededLogs(vfs.Default, dir)
	if err != nil {
		return nil, err
	}
	if t, err := checkTail(vfs.Default, dir); errors.Is(err, ErrLogDamaged) && (len(logs) == 0 || t.number > logs[len(logs)-1].number) {
		d := &LogDamage{Log: t.name, LostBytes: t.synced} // the file is missing
		if !cut {
			return d, nil
		}
		return d, forgetSynced(dir)
	}
	for i, l := range logs {
		bad, s, err := damagedLog(dir, l, i == len(logs)-1)
		if err != nil {
			return nil, err
		}
		if !bad {
			continue
		}
		d := &LogDamage{Log: l.name, Offset: s.end, LostBytes: s.lost, LostBatches: s.behind, Files: []string{cutName(dir, l.name)}}
		for _, later := range logs[i+1:] {
			s, err := readLog(vfs.Default, dir, later)
			if err != nil {
				return nil, err
			}
			d.LostBytes += s.end
			d.LostBatches += s.batches
			d.Files = append(d.Files, cutName(dir, later.name))
		}
		if !cut {
			return d, nil
		}
		return d, cutLogs(dir, l, s.end, logs[i+1:], d.Files)
	}
	return nil, nil
}

// neededLogs returns the logs that a start reads, the oldest first.
func neededLogs(fs vfs.FS, dir string) ([]logFile, error) {
	oldest, err := minUnflushed(fs, dir)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	logs, err := listLogs(fs, dir)
	for len(logs) > 0 && logs[0].number < oldest {
		logs = logs[1:]
	}
	return logs, err
}

// damagedLog reports whether a start would refuse a log. The newest log may have a torn end;
// earlier logs were closed, and must be complete.
func damagedLog(dir string, l logFile, newest bool) (bool, logScan, error) {
	if newest {
		t, err := checkTail(vfs.Default, dir)
		if errors.Is(err, ErrLogDamaged) {
			return true, t.logScan, nil
		}
		return false, t.logScan, err
	}
	s, err := readLog(vfs.Default, dir, l)
	if err != nil {
		return false, s, err
	}
	info, err := os.Stat(filepath.Join(dir, l.name))
	if err != nil {
		return false, s, fmt.Errorf("read log: %w", err)
	}
	whole := s.closed && s.stop-logHeader == s.end || s.stop == s.end && s.stop == info.Size()
	return !whole, s, nil
}

// cutName returns an unused name beside a log.
func cutName(dir, log string) string {
	for i := 0; ; i++ {
		name := log + ".cut"
		if i > 0 {
			name = fmt.Sprintf("%s.%d.cut", log, i)
		}
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			return name
		}
	}
}

// cutLogs saves the bytes behind the damage, then removes them: first the later logs, the
// newest first, so that after a crash a start refuses or repairs the folder.
func cutLogs(dir string, l logFile, offset int64, later []logFile, names []string) error {
	path := filepath.Join(dir, l.name)
	if err := copyEnd(path, filepath.Join(dir, names[0]), offset); err != nil {
		return err
	}
	for i, l := range slices.Backward(later) {
		if err := os.Rename(filepath.Join(dir, l.name), filepath.Join(dir, names[1+i])); err != nil {
			return fmt.Errorf("keep later log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("cut log: %w", err)
	}
	err = f.Truncate(offset)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cut log: %w", err)
	}
	return forgetSynced(dir)
}

// forgetSynced drops the promise of the mark about the log.
func forgetSynced(dir string) error {
	if err := os.Remove(filepath.Join(dir, syncedName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cut log: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cut log: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

// copyEnd copies the bytes of a file from an offset on into another file.
func copyEnd(from, to string, offset int64) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("keep end of log: %w", err)
	}
	defer in.Close() //nolint:errcheck // it was read
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("keep end of log: %w", err)
	}
	_, err = in.Seek(offset, io.SeekStart)
	if err == nil {
		_, err = io.Copy(out, in)
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("keep end of log: %w", err)
	}
	return nil
}
