package gateway

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/limit"
)

const (
	windowStream  = "PENSTOCK_WINDOWS"
	windowSubject = "penstock.window."

	// windowBytesMax bounds the stream: about 300,000 windows. Beyond it new ones are counted by each gateway alone.
	windowBytesMax = 64 << 20
	// windowBytesLeast is the last size that is tried with a NATS that has little room.
	windowBytesLeast = 1 << 20

	// grantMax bounds one grant, for which a caller waits. It takes less than a millisecond; this is for a NATS in trouble.
	grantMax = 500 * time.Millisecond
	// grantTries is how often a grant is tried when other gateways change the same account at the same time.
	grantTries = 16
	// grantShare is which part of what is left one grant takes, at most grantMost: so the nearer a window is to its limit,
	// the smaller is what one gateway holds and another lacks. The last 16 are granted one by one.
	grantShare = 16
	grantMost  = 1024

	// openRetry is how long after a failure the stream is tried again.
	openRetry = 5 * time.Second
)

// sharedWindows is what all gateways of a NATS cluster together have let in by window. It grants each gateway a few asks at a time
// that no other can use, and never more in all than the window's limit.
//
// An account is the latest message of its subject in one JetStream stream: a limit.WindowState, changed by
// compare-and-set on the sequence of that message, and gone by itself (message TTL) when its window has ended. What a
// gateway was granted and did not use when it died is lost for the rest of the window.
//
//	subject  penstock.window.<topic>.<scope>.<name>, topic and name in base64url
//	payload  version 1 (1 byte), At (8 bytes), Used (8 bytes), big endian
//
// If you change the payload, raise the version: what another version wrote is an error, and then each gateway counts alone.
//
// It is safe for concurrent use.
type sharedWindows struct {
	js     jetstream.JetStream
	prefix string
	// most bounds the time of one grant: grantMax, except in tests.
	most time.Duration

	mu     sync.Mutex // guards the following fields; not held while the stream is opened
	stream jetstream.Stream
	failed time.Time // the latest failure to open it
}

func newShared(nc *nats.Conn, topic string) (*sharedWindows, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("windows: %w", err)
	}
	return &sharedWindows{js: js, prefix: windowSubject + subjectToken(topic) + ".", most: grantMax}, nil
}

func (s *sharedWindows) subject(t suspend.Target) string {
	return s.prefix + t.Scope.String() + "." + subjectToken(t.Name)
}

// subjectToken makes one token of a subject of any text, the empty one too.
func subjectToken(text string) string {
	return "x" + base64.RawURLEncoding.EncodeToString([]byte(text))
}

// errLately says that nothing was tried.
var errLately = errors.New("open windows: failed a moment ago")

// grant is what one gateway may let in.
type grant struct {
	at   int64 // an instant in the window that it is for, UnixNano; not before that of any grant before it
	n    int64 // 0: the window is used up
	rest int64 // left for others
}

// take takes a grant from the window w of target t.
func (s *sharedWindows) take(ctx context.Context, now time.Time, t suspend.Target, w limit.FixedWindow) (grant, error) {
	ctx, cancel := context.WithTimeout(ctx, s.most)
	defer cancel()
	stream, err := s.open(ctx, now)
	if err != nil {
		return grant{}, err
	}
	subject := s.subject(t)
	for range grantTries {
		state, seq, err := lastState(ctx, stream, subject)
		if err != nil {
			return grant{}, err
		}
		state, d := w.Peek(state, now, 1)
		if !d.Allowed {
			return grant{at: state.At}, nil
		}
		g := grant{n: min(max(d.Remaining/grantShare, 1), grantMost)}
		state, d = w.Take(state, now, g.n)
		g.at, g.rest = state.At, d.Remaining
		switch err := s.put(ctx, subject, state, seq, w.End(time.Unix(0, state.At)).Sub(now)); {
		case err == nil:
			return g, nil
		case !isConflict(err):
			return grant{}, fmt.Errorf("change window: %w", err)
		}
	}
	return grant{}, errors.New("change window: other gateways change it all the time")
}

// open returns the stream, which the first use makes: NATS may come up after the gateway.
func (s *sharedWindows) open(ctx context.Context, now time.Time) (jetstream.Stream, error) {
	s.mu.Lock()
	stream, failed := s.stream, s.failed
	s.mu.Unlock()
	if stream != nil {
		return stream, nil
	}
	if since := now.Sub(failed); since >= 0 && since < openRetry {
		return nil, errLately
	}
	stream, err := s.create(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed = now
		return nil, fmt.Errorf("open windows: %w", err)
	}
	s.stream = stream
	return stream, nil
}

// create makes the stream or changes the existing one. Its content is useful only until its window ends, and the loss of a
// part in a power cut only admits a few more requests, so writes are not synced one by one. A server before 2.12 does not
// know that mode, and a small volume has no room for windowBytesMax.
func (s *sharedWindows) create(ctx context.Context) (jetstream.Stream, error) {
	config := jetstream.StreamConfig{
		Name: windowStream, Description: "what the gateways of Penstock let in by fixed window",
		Subjects: []string{windowSubject + ">"}, MaxMsgsPerSubject: 1, MaxBytes: windowBytesMax, Discard: jetstream.DiscardNew,
		AllowMsgTTL: true, AllowDirect: true, PersistMode: jetstream.AsyncPersistMode,
	}
	for {
		stream, err := s.js.CreateOrUpdateStream(ctx, config)
		switch api, _ := errors.AsType[*jetstream.APIError](err); {
		case err == nil || api == nil:
			return stream, err
		case reply.IsNoRoom(err) && config.MaxBytes > windowBytesLeast:
			config.MaxBytes /= 2
		case !reply.IsNoRoom(err) && config.PersistMode != jetstream.DefaultPersistMode:
			config.PersistMode = jetstream.DefaultPersistMode
		default:
			return nil, err
		}
	}
}

func (s *sharedWindows) put(ctx context.Context, subject string, state limit.WindowState, seq uint64, left time.Duration) error {
	// A time to live is whole seconds. One more, for the clock of the server.
	ttl := time.Duration(retrySeconds(left)+1) * time.Second
	_, err := s.js.Publish(ctx, subject, encodeWindow(state),
		jetstream.WithExpectLastSequencePerSubject(seq), jetstream.WithMsgTTL(ttl), jetstream.WithRetryAttempts(0))
	return err
}

// lastState reads an account and the sequence that stands for this state of it; both are zero if there is none.
func lastState(ctx context.Context, stream jetstream.Stream, subject string) (limit.WindowState, uint64, error) {
	msg, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return limit.WindowState{}, 0, nil
	}
	if err != nil {
		return limit.WindowState{}, 0, fmt.Errorf("read window: %w", err)
	}
	state, err := decodeWindow(msg.Data)
	return state, msg.Sequence, err
}

func isConflict(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

const (
	windowVersion = 1
	windowSize    = 1 + 8 + 8
)

func encodeWindow(s limit.WindowState) []byte {
	out := make([]byte, 0, windowSize)
	out = append(out, windowVersion)
	out = binary.BigEndian.AppendUint64(out, uint64(s.At))
	return binary.BigEndian.AppendUint64(out, uint64(s.Used))
}

func decodeWindow(data []byte) (limit.WindowState, error) {
	if len(data) != windowSize || data[0] != windowVersion {
		return limit.WindowState{}, fmt.Errorf("read window: %d bytes that are no account of version %d", len(data), windowVersion)
	}
	s := limit.WindowState{
		At:   int64(binary.BigEndian.Uint64(data[1:])),
		Used: int64(binary.BigEndian.Uint64(data[9:])),
	}
	if s.Used < 0 {
		return limit.WindowState{}, fmt.Errorf("read window: %d are used", s.Used)
	}
	return s, nil
}
