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

// Where a log ends, and whether that is its end
//
// Pebble reads the newest log up to the first chunk that is not whole and takes that for
// its end: after a power cut it is. A flipped bit looks the same to it, and what follows
// would vanish without a word. This file reads the framing once more, before Pebble does,
// and says what lies behind that place.
//
// A log is a sequence of blocks of 32 KiB. A block holds chunks, which do not cross its
// end: CRC:4 size:2 type:1 log:4 payload, integers little-endian. A batch is one chunk of
// type full, or first, middle…, last. Less room than a header at a block's end is zeros.
// A log that was closed ends in a header with the next log's number. Files are used again
// (recycled), so behind the end may lie chunks of an older log; their log number says so.
// https://pkg.go.dev/github.com/cockroachdb/pebble/v2/record has the format.
const (
	logBlock     = 32 << 10
	logHeader    = 4 + 2 + 1 + 4
	syncHeader   = logHeader + 8 // of newer formats, which write the synced offset behind the log
	typeFull     = 5             // then first, middle, last
	typeLast     = 8
	typeSyncFull = 9 // the same four of newer formats
	typeSyncLast = 12
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// logScan is what the framing of one log file says.
type logScan struct {
	// end is the offset behind the last whole batch, stop that of the first chunk which
	// is not whole. Between them is the beginning of a batch.
	end, stop int64
	closed    bool // the log has the trailer of one that was closed
	batches   int  // whole ones before end
	// lost is how many bytes behind end this log is known to have had.
	lost      int64
	behind    int   // whole batches behind stop
	behindEnd int64 // the end of the last of them
}

// scanLog reads the file of a log. The error is one of reading: damage is in the result.
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
	if s.stop > s.end && !s.closed { // a batch that was begun; a closed log has its trailer there
		s.lost = max(s.lost, s.stop-s.end)
	}
	return s, nil
}

// logWalk is the block that is looked at.
type logWalk struct {
	log     uint32
	buf     []byte
	n       int   // bytes of buf that are there
	base    int64 // offset of the block, and behind the last one of the file's end
	at      int   // in buf
	stopped bool
	begun   bool // a batch was begun and not ended
}

func (w *logWalk) next(r io.Reader) (bool, error) {
	w.base += int64(w.n)
	n, err := io.ReadFull(r, w.buf)
	if w.n, w.at = n, 0; err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, fmt.Errorf("read log: %w", err)
	}
	return n > 0, nil
}

// chunk is one chunk's header, judged.
type chunk struct {
	kind  int // 0 full, 1 first, 2 middle, 3 last
	size  int // with the header
	ours  bool
	whole bool
}

// chunkAt judges the chunk at a place of the block that has room for a header.
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

// read goes through the block up to its end or to the first chunk that is not whole.
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

// take notes a whole chunk. One that continues a batch whose beginning is not there is
// passed over, as Pebble does.
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

// padding is whether the rest of the block is the zeros of one that has no room for a
// header of either format.
func (w *logWalk) padding() bool {
	return w.n == logBlock && w.n-w.at < syncHeader && !slices.ContainsFunc(w.buf[w.at:w.n], nonZero)
}

func nonZero(b byte) bool { return b != 0 }

// stop notes that the chunk here is not whole, and looks at what is behind it in this block.
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

// lookAhead looks for whole chunks of this log behind the place where it stopped, at each
// byte: a damaged size says nothing of where the next chunk begins.
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
		w.at-- // the next one may begin here
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

// minUnflushed returns the oldest log that the manifest still needs. It is the second
// field of a version edit, or the first where the comparer's name is not written.
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
			return oldest, nil // its end, or damage that Pebble will name
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
