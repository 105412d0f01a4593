package reply

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// Errors of an Inbox.
var (
	ErrOpen   = errors.New("reply: request has an open stream already")
	ErrClosed = errors.New("reply: closed")
)

// InboxOptions configures an [Inbox].
type InboxOptions struct {
	// Gateway names this gateway in subjects, 1 to 64 of [A-Za-z0-9_-]. Two gateways never share a name.
	Gateway string
	// StreamBytes bounds what waits for one slow reader; more fails that stream. 0 means 16 MiB.
	StreamBytes int64
	// TotalBytes bounds what waits for all readers; a frame beyond it fails its stream. 0 means 512 MiB.
	TotalBytes int64
	// Logger gets malformed frames. Nil means none are logged.
	Logger *slog.Logger
}

func (o *InboxOptions) fill() error {
	if !tokenRE.MatchString(o.Gateway) {
		return errors.New("reply: gateway: want 1 to 64 of [A-Za-z0-9_-]")
	}
	if o.StreamBytes < 0 || o.TotalBytes < 0 {
		return errors.New("reply: stream_bytes, total_bytes: want 0 or more")
	}
	if o.StreamBytes == 0 {
		o.StreamBytes = 16 << 20
	}
	if o.TotalBytes == 0 {
		o.TotalBytes = 512 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Inbox receives the reply streams of one gateway with one subscription and hands each to its reader.
//
// One subscription and not one per request: subscribing costs the server a change of its routing table, and a request
// here may last a millisecond.
type Inbox struct {
	opts   InboxOptions
	nc     *nats.Conn
	prefix string // "penstock.reply.<gateway>."
	sub    *nats.Subscription
	held   atomic.Int64 // bytes waiting in all streams

	status chan nats.Status
	stop   chan struct{}
	watch  sync.WaitGroup // the goroutine that watches the connection; ends on stop, Close waits for it

	mu      sync.Mutex // guards the following fields; never held while a stream's is taken and waited on
	streams map[string]*Stream
	closed  bool
}

// NewInbox subscribes on nc. The caller keeps nc open until after Close.
func NewInbox(nc *nats.Conn, opts InboxOptions) (*Inbox, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	b := &Inbox{
		opts:    opts,
		nc:      nc,
		prefix:  replyPrefix + "." + opts.Gateway + ".",
		stop:    make(chan struct{}),
		streams: make(map[string]*Stream),
	}
	sub, err := nc.Subscribe(b.prefix+"*", b.deliver)
	if err != nil {
		return nil, fmt.Errorf("subscribe to replies: %w", err)
	}
	// The callback only moves frames into bounded buffers, so what waits in the client is a scheduling hiccup; a loss
	// there shows as a gap all the same.
	if err := sub.SetPendingLimits(1<<20, 256<<20); err != nil {
		return nil, errors.Join(fmt.Errorf("bound replies: %w", err), sub.Unsubscribe())
	}
	b.sub = sub
	b.status = nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	b.watch.Go(b.watchConnection)
	return b, nil
}

// Subject is the reply subject of request id: the value of [Request.Reply].
func (b *Inbox) Subject(id string) string { return b.prefix + id }

// Open makes a stream for request id. REQUIRES: before its message is sent, else the first frames find no reader.
func (b *Inbox) Open(id string) (*Stream, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	s := &Stream{inbox: b, id: id, wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	if _, taken := b.streams[id]; taken {
		return nil, ErrOpen
	}
	b.streams[id] = s
	return s, nil
}

// Streams is the number of open streams.
func (b *Inbox) Streams() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.streams)
}

// Close unsubscribes and fails every open stream. It may be called twice.
func (b *Inbox) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	open := b.snapshotLocked()
	b.mu.Unlock()

	for _, s := range open {
		s.lose("the gateway is stopping")
	}
	close(b.stop)
	b.watch.Wait()
	b.nc.RemoveStatusListener(b.status)
	if err := b.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("unsubscribe from replies: %w", err)
	}
	return nil
}

func (b *Inbox) snapshotLocked() []*Stream {
	open := make([]*Stream, 0, len(b.streams))
	for _, s := range b.streams {
		open = append(open, s)
	}
	return open
}

// deliver runs on the subscription's goroutine, one message at a time.
func (b *Inbox) deliver(m *nats.Msg) {
	if b.answerAsk(m) {
		return
	}
	id := m.Subject[len(b.prefix):]
	b.mu.Lock()
	s := b.streams[id]
	b.mu.Unlock()
	if s == nil {
		return // its caller has left
	}
	f, seq, err := decode(m)
	if err != nil {
		b.opts.Logger.Warn("reply frame dropped", "request_id", id, "error", err)
		return
	}
	s.accept(f, seq)
}

// watchConnection fails the answers that were under way when the connection was lost: if their last frame was lost with
// it, no later one would show the gap, and the caller would wait for its deadline.
func (b *Inbox) watchConnection() {
	for {
		select {
		case <-b.stop:
			return
		case <-b.status:
			b.mu.Lock()
			open := b.snapshotLocked()
			b.mu.Unlock()
			for _, s := range open {
				if s.underWay() {
					s.lose("the connection to NATS was lost while the answer was under way")
				}
			}
		}
	}
}

func (b *Inbox) forget(s *Stream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.streams[s.id] == s {
		delete(b.streams, s.id)
	}
}
