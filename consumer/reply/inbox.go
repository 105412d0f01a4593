package reply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

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
	// TotalBytes bounds the frames that wait for all readers; beyond it the stream with the most bytes fails. 0 means 512 MiB.
	TotalBytes int64
	// Window bounds the bytes that a writer may send ahead of its reader. 0 means 256 KiB.
	Window int64
	// LinkBytes bounds the windows of all streams together, in bytes. It must be less than the pending limit of one client in
	// the NATS server (max_pending, 64 MiB). 0 means 32 MiB.
	LinkBytes int64
	// Logger gets malformed frames. Nil means none are logged.
	Logger *slog.Logger
}

func (o *InboxOptions) fill() error {
	if !tokenRE.MatchString(o.Gateway) {
		return errors.New("reply: gateway: want 1 to 64 of [A-Za-z0-9_-]")
	}
	if o.StreamBytes < 0 || o.TotalBytes < 0 || o.LinkBytes < 0 {
		return errors.New("reply: stream_bytes, total_bytes, link_bytes: want 0 or more")
	}
	if o.Window < 0 || o.Window > math.MaxInt32 {
		return errors.New("reply: window: want 0 to 2147483647 bytes")
	}
	if o.Window == 0 {
		o.Window = 256 << 10
	}
	if o.LinkBytes == 0 {
		o.LinkBytes = 32 << 20
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

	linkBytes atomic.Int64 // window of all streams together, see link
	carried   atomic.Int64 // bytes of answers that came since the last measurement
	flowing   atomic.Int64 // streams with credit that have begun and not ended
	slow      atomic.Int64 // streams that failed because their reader was too slow

	status  chan nats.Status
	stopped context.Context // ends with Close
	stop    context.CancelFunc
	watch   sync.WaitGroup // the goroutines that watch the connection; they end on stop, Close waits for them

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
		streams: make(map[string]*Stream),
	}
	b.stopped, b.stop = context.WithCancel(context.Background())
	b.linkBytes.Store(min(linkStart, opts.LinkBytes))
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
	b.watch.Go(b.measureLink)
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
	// Every open stream counts, also one that has not begun, and the window of a fast link is not trusted: all streams may
	// begin at the same time.
	s.first = share(min(b.linkBytes.Load(), linkStart), int64(len(b.streams)), b.opts.Window)
	s.grantLocked(s.first, s.first)
	return s, nil
}

// Streams is the number of open streams.
func (b *Inbox) Streams() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.streams)
}

// Held returns the bytes of answers that wait for their readers.
func (b *Inbox) Held() int64 { return b.held.Load() }

// Slow returns the number of streams that failed because their reader was too slow.
func (b *Inbox) Slow() int64 { return b.slow.Load() }

// LinkBytes returns the bytes of answers that may be on their way to this gateway now.
func (b *Inbox) LinkBytes() int64 { return b.linkBytes.Load() }

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
	b.stop()
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
	b.carried.Add(int64(len(m.Data)))
	b.mu.Lock()
	s := b.streams[id]
	b.mu.Unlock()
	asks := m.Reply != "" && isCreditSubject(m.Reply)
	if s == nil { // its caller has left
		if asks {
			b.publish(m.Reply, goneWord)
		}
		return
	}
	f, seq, err := decode(m)
	if err != nil {
		b.opts.Logger.Warn("reply frame dropped", "request_id", id, "error", err)
		return
	}
	if f.Kind == kindProbe {
		if asks {
			b.grant(m.Reply, s.asked())
		}
		return
	}
	s.accept(f, seq)
	if b.held.Load() > b.opts.TotalBytes {
		b.dropFullest()
	}
}

// dropFullest fails the stream that holds the most bytes, and not the stream of the newest frame: the other readers are not
// to blame.
func (b *Inbox) dropFullest() {
	b.mu.Lock()
	open := b.snapshotLocked()
	b.mu.Unlock()
	var fullest *Stream
	var most int64
	for _, s := range open {
		if n := s.queued(); n > most {
			fullest, most = s, n
		}
	}
	if fullest != nil {
		fullest.overflow()
	}
}

// window returns the bytes that a writer may send ahead of its reader.
func (b *Inbox) window() int64 { return share(b.linkBytes.Load(), b.flowing.Load(), b.opts.Window) }

func (b *Inbox) grant(subject string, limit int64) {
	b.publish(subject, creditWord+" "+strconv.FormatInt(limit, 10))
}

// publish answers a writer. An error means that the connection is gone: then the running streams fail anyway.
func (b *Inbox) publish(subject, text string) { _ = b.nc.Publish(subject, []byte(text)) }

// measureLink updates the window of the link, see link. The answer to a client's ping queues behind everything that the
// server has for the client.
func (b *Inbox) measureLink() {
	l := link{bytes: b.linkBytes.Load(), most: b.opts.LinkBytes}
	tick := time.NewTicker(linkEvery)
	defer tick.Stop()
	for {
		select {
		case <-b.stopped.Done():
			return
		case <-tick.C:
		}
		carried := b.carried.Swap(0)
		if b.flowing.Load() == 0 {
			l.idle()
		} else {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(b.stopped, linkSlow)
			err := b.nc.FlushWithContext(ctx)
			cancel()
			if err == nil || errors.Is(err, context.DeadlineExceeded) { // else there is no connection
				l.measured(time.Since(begin), carried)
			}
		}
		b.linkBytes.Store(l.bytes)
	}
}

// watchConnection fails the answers that were under way when the connection was lost: if their last frame was lost with
// it, no later one would show the gap, and the caller would wait for its deadline.
func (b *Inbox) watchConnection() {
	for {
		select {
		case <-b.stopped.Done():
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
