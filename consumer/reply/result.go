package reply

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrResult: the stored result differs from the written one.
var ErrResult = errors.New("reply: damaged result")

// ResultChunk bounds the memory of a reader of [Store.Open], in bytes.
const ResultChunk = chunkBytes

// Open returns a reader of the answer in a record that Get returned. A large answer is fetched piece by piece while it is
// read, so that a slow reader holds one piece in memory. ErrNotFound: the result's TTL ended a moment before the record's.
// The last Read checks the digest; ErrResult.
func (s *Store) Open(ctx context.Context, r Record) (io.Reader, error) {
	if r.Object == "" {
		return bytes.NewReader(r.Body), nil
	}
	info, err := s.results.GetInfo(ctx, r.Object)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	return &resultReader{
		ctx: ctx, stream: s.resultStream, subject: "$O." + resultBucket + ".C." + info.NUID, next: 1,
		left: info.Chunks, digest: info.Digest, sum: sha256.New(),
	}, nil
}

// resultReader reads the chunks one by one. It belongs to one goroutine.
type resultReader struct {
	ctx     context.Context //nolint:containedctx // an io.Reader has no other way to end
	stream  jetstream.Stream
	subject string
	next    uint64 // the sequence at which the search for the next chunk begins
	left    uint32 // chunks
	piece   []byte // unread rest of the last chunk
	digest  string
	sum     hash.Hash
}

// Read implements [io.Reader].
func (r *resultReader) Read(p []byte) (int, error) {
	for len(r.piece) == 0 {
		if r.left == 0 {
			return 0, r.end()
		}
		m, err := r.stream.GetMsg(r.ctx, r.next, jetstream.WithGetMsgSubject(r.subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return 0, fmt.Errorf("%w: %d of its chunks are missing", ErrResult, r.left)
		}
		if err != nil {
			return 0, fmt.Errorf("read result: %w", err)
		}
		r.next, r.left, r.piece = m.Sequence+1, r.left-1, m.Data
		r.sum.Write(m.Data)
	}
	n := copy(p, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

func (r *resultReader) end() error {
	want, ok := strings.CutPrefix(r.digest, "SHA-256=")
	if ok && base64.URLEncoding.EncodeToString(r.sum.Sum(nil)) != want {
		return fmt.Errorf("%w: wrong digest", ErrResult)
	}
	return io.EOF
}
