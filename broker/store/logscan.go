package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// The end of a log
//
// Pebble reads the newest log up to the first incomplete chunk and takes that place for the
// end: after a power cut it is. A flipped bit looks the same to Pebble, and the batches
// behind it would vanish silently. This file reads the framing before Pebble does, and
// reports the chunks behind that place.
//
// A log is a sequence of blocks of 32 KiB. A block holds chunks, which do not cross its
// end: CRC:4 size:2 type:1 log:4 payload, integers little-endian. A batch is one chunk of
// type full, or first, middle…, last. Space too small for a header at a block's end is zeros.
// A closed log ends in a header with the next log's number. Files are used again
// (recycled), so chunks of an older log may follow the end; their log number shows that.
// https://pkg.go.dev/github.com/cockroachdb/pebble/v2/record has the format.
const (
	logBlock     = 32 << 10
	logHeader    = 4 + 2 + 1 + 4
	syncHeader   = logHeader + 8 // of newer formats, which append the synced offset
	typeFull     = 5             // then first, middle, last
	typeLast     = 8
	typeSyncFull = 9 // the same four types in newer formats
	typeSyncLast = 12
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// logScan is the result of reading the framing of one log file.
type logScan struct {
	// end is the offset behind the last complete batch, stop that of the first incomplete
	// chunk. The bytes between them are the beginning of a batch.
	end, stop int64
	closed    bool // the log has the trailer of a closed log
	batches   int  // complete batches before end
	// lost is the number of bytes behind end that this log is known to have had.
	lost      int64
	behind    int   // complete batches behind stop
	behindEnd int64 // end of the last batch behind stop
}

// scanLog reads a log file. The error is a read error: damage is part of the result.
func scanLog(r io.Reader, log uint32) (logScan, error) {
	var s logScan
	w := logWalk{log: log, buf: make([]byte, logBlock)}
	for {
		more, err := w.next(r)
		if err != nil {
			return s, err
		}
		if !more {
			break
		}
		if !w.stopped {
			w.read(&s)
			continue
		}
		w.lookAhead(&s)
	}
	if !w.stopped {
		s.stop = w.base
	}
	if s.stop > s.end && !s.closed { // an unfinished batch; a closed log has its trailer there
		s.lost = max(s.lost, s.stop-s.end)
	}
	return s, nil
}

// logWalk is the current block of a scan.
type logWalk struct {
	log     uint32
	buf     []byte
	n       int   // valid bytes of buf
	base    int64 // offset of the block; after the last block, of the file's end
	at      int   // index in buf
	stopped bool
	begun   bool // a batch has begun and not ended
}

func (w *logWalk) next(r io.Reader) (bool, error) {
	w.base += int64(w.n)
	n, err := io.ReadFull(r, w.buf)
	if w.n, w.at = n, 0; err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, fmt.Errorf("read log: %w", err)
	}
	return n > 0, nil
}

// chunk is the checked header of one chunk.
type chunk struct {
	kind  int // 0 full, 1 first, 2 middle, 3 last
	size  int // including the header
	ours  bool
	whole bool
}

// chunkAt checks the chunk at an index of the block. REQUIRES: the block has room for a header there.
func (w *logWalk) chunkAt(at int) (c chunk) {
	b := w.buf[at:w.n]
	header, kind := logHeader, int(b[6])
	switch {
	case kind >= typeFull && kind <= typeLast:
		c.kind = kind - typeFull
	case kind >= typeSyncFull && kind <= typeSyncLast:
		c.kind, header = kind-typeSyncFull, syncHeader
	default:
		return c
	}
	c.ours = binary.LittleEndian.Uint32(b[7:]) == w.log
	c.size = header + int(binary.LittleEndian.Uint16(b[4:]))
	if c.size > len(b) {
		return c
	}
	crc := crc32.Checksum(b[6:c.size], castagnoli)
	c.whole = c.ours && binary.LittleEndian.Uint32(b) == (crc>>15|crc<<17)+0xa282ead8
	return c
}

// read scans the block up to its end or to the first incomplete chunk.
func (w *logWalk) read(s *logScan) {
	for w.n-w.at >= logHeader {
		if w.padding() {
			w.at = w.n
			return
		}
		c := w.chunkAt(w.at)
		if !c.whole {
			w.stop(s, c)
			return
		}
		w.at += c.size
		w.take(s, c.kind)
	}
	if w.n < logBlock && slices.ContainsFunc(w.buf[w.at:w.n], nonZero) {
		w.stop(s, chunk{}) // the file ends within a header
		s.lost = s.stop + int64(w.n-w.at) - s.end
	}
}

// take counts a complete chunk. A chunk that continues a batch without a beginning is
// skipped, as in Pebble.
func (w *logWalk) take(s *logScan, kind int) {
	switch kind {
	case 0, 3:
		if kind == 0 || w.begun {
			s.end = w.base + int64(w.at)
			s.batches++
		}
		w.begun = false
	case 1:
		w.begun = true
	}
}

// padding reports whether the rest of the block is zeros because it has no room for a
// header of either format.
func (w *logWalk) padding() bool {
	return w.n == logBlock && w.n-w.at < syncHeader && !slices.ContainsFunc(w.buf[w.at:w.n], nonZero)
}

func nonZero(b byte) bool { return b != 0 }

// stop records that the current chunk is incomplete, and searches the rest of this block.
func (w *logWalk) stop(s *logScan, c chunk) {
	w.stopped = true
	s.stop = w.base + int64(w.at)
	if b := w.buf[w.at:w.n]; !w.begun && len(b) >= logHeader && binary.LittleEndian.Uint32(b[7:]) == w.log+1 && b[4] == 0 && b[5] == 0 {
		s.closed = true
		s.stop += logHeader
	}
	if s.closed {
		return
	}
	if c.ours {
		s.lost = min(s.stop+int64(c.size), w.base+int64(w.n)) - s.end
	}
	w.at++
	w.lookAhead(s)
}

// lookAhead searches for complete chunks of this log behind the place where the scan
// stopped, at each byte: after a damaged size the start of the next chunk is unknown.
func (w *logWalk) lookAhead(s *logScan) {
	for ; w.n-w.at >= logHeader; w.at++ {
		if binary.LittleEndian.Uint32(w.buf[w.at+7:]) != w.log {
			continue
		}
		c := w.chunkAt(w.at)
		if !c.whole {
			continue
		}
		w.at += c.size
		if c.kind == 0 || c.kind == 3 {
			s.behind++
		}
		s.behindEnd = w.base + int64(w.at)
		s.lost = max(s.lost, s.behindEnd-s.end)
		w.at-- // the next chunk may begin here
	}
}

// newestLog returns the number and name of the newest log of a folder; 0 if it has none.
func newestLog(fs vfs.FS, dir string) (uint64, string, error) {
	logs, err := listLogs(fs, dir)
	if err != nil || len(logs) == 0 {
		return 0, "", err
	}
	last := logs[len(logs)-1]
	return last.number, last.name, nil
}

type logFile struct {
	number uint64
	name   string
}

// listLogs returns the logs of a folder, the oldest first.
func listLogs(fs vfs.FS, dir string) ([]logFile, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}
	var logs []logFile
	for _, name := range names {
		if n, _, ok := wal.ParseLogFilename(name); ok {
			logs = append(logs, logFile{uint64(n), name})
		}
	}
	slices.SortFunc(logs, func(a, b logFile) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	return logs, nil
}

// readLog scans one log of a folder.
func readLog(fs vfs.FS, dir string, l logFile) (logScan, error) {
	f, err := fs.Open(fs.PathJoin(dir, l.name), vfs.SequentialReadsOption)
	if err != nil {
		return logScan{}, fmt.Errorf("read log: %w", err)
	}
	s, err := scanLog(f, uint32(l.number))
	return s, errors.Join(err, f.Close())
}

// minUnflushed returns the number of the oldest log that the manifest still needs. It is the
// second field of a version edit, or the first where the comparer's name is not written.
func minUnflushed(fs vfs.FS, dir string) (uint64, error) {
	desc, err := pebble.Peek(dir, fs)
	if err != nil || !desc.Exists {
		return 0, err //nolint:wrapcheck // the caller says what was read
	}
	f, err := fs.Open(desc.ManifestFilename)
	if err != nil {
		return 0, fmt.Errorf("read manifest: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was read
	oldest := uint64(0)
	for edits := record.NewReader(f, 0); ; {
		r, err := edits.Next()
		if err != nil {
			return oldest, nil // the end of the manifest, or damage that Pebble will report
		}
		edit, err := io.ReadAll(r)
		if err != nil {
			return oldest, nil // as above
		}
		if n := editLogNumber(edit); n > 0 {
			oldest = n
		}
	}
}

func editLogNumber(edit []byte) uint64 {
	const tagComparer, tagLogNumber = 1, 2
	tag, n := binary.Uvarint(edit)
	if tag == tagComparer && n > 0 {
		size, k := binary.Uvarint(edit[n:])
		if k <= 0 || size > uint64(len(edit)-n-k) {
			return 0
		}
		edit = edit[n+k+int(size):]
		tag, n = binary.Uvarint(edit)
	}
	if tag != tagLogNumber || n <= 0 {
		return 0
	}
	v, _ := binary.Uvarint(edit[n:])
	return v
}
