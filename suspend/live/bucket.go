package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrDisconnected: NATS cannot be reached right now. Nothing was changed.
var ErrDisconnected = errors.New("NATS cannot be reached")

const (
	openTries  = 3
	retryFirst = 50 * time.Millisecond
	retryMax   = time.Second // so that what was put meanwhile acts within about a second of NATS's return
)

// Options of OpenPolicies and OpenSignals.
type Options struct {
	// Logger gets what goes wrong at run time. Nil drops it.
	Logger *slog.Logger
	// Replicas of the bucket in a NATS cluster. 0 means 1.
	Replicas int
	// Keep is the file in which OpenPolicies keeps the policy in force, beside NATS. Empty: no copy is kept, and if NATS loses
	// the policy, there are no limits after a restart.
	Keep string
}

// bucket is one key-value bucket, opened and followed.
type bucket struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	kv     jetstream.KeyValue // a handle: it stays good when the bucket is made again
	config jetstream.KeyValueConfig
	log    *slog.Logger
}

func openBucket(ctx context.Context, nc *nats.Conn, config jetstream.KeyValueConfig, opts Options) (*bucket, error) {
	if opts.Replicas < 0 {
		return nil, fmt.Errorf("open %s: replicas: is %d, want 0 or more", config.Bucket, opts.Replicas)
	}
	config.Replicas = max(opts.Replicas, 1)
	b := &bucket{nc: nc, config: config, log: opts.Logger}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if b.js, err = jetstream.New(nc); err != nil {
		return nil, fmt.Errorf("open %s: %w", config.Bucket, err)
	}
	// A server that has just started may take a request and not answer it; the client gives up after five seconds.
	for range openTries {
		b.kv, err = b.js.CreateOrUpdateKeyValue(ctx, config)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", config.Bucket, err)
	}
	return b, nil
}

// writable is to be asked before each write. The client would keep a write until NATS is back, long after its caller
// was told that it failed, and undo what others wrote in between.
func (b *bucket) writable() error {
	if !b.nc.IsConnected() {
		return fmt.Errorf("%w: %s", ErrDisconnected, b.config.Bucket)
	}
	return nil
}

// snapshot reads the latest entry of each key.
func (b *bucket) snapshot(ctx context.Context) ([]jetstream.KeyValueEntry, error) {
	w, err := b.kv.WatchAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", b.config.Bucket, err)
	}
	defer stop(w)
	var entries []jetstream.KeyValueEntry
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return nil, fmt.Errorf("read %s: %w", b.config.Bucket, ErrDisconnected)
			}
			if e == nil {
				return entries, nil
			}
			entries = append(entries, e)
		case <-ctx.Done():
			return nil, fmt.Errorf("read %s: %w", b.config.Bucket, ctx.Err())
		}
	}
}

// follow calls whole with the latest entry of each key, then changed for each change, until ctx is done. After NATS was
// away, and whenever the watch ends, it begins again with whole: changes may have been missed. tick, if not nil, is called
// now and then in between. All calls are made by the caller's goroutine.
func (b *bucket) follow(ctx context.Context, whole func([]jetstream.KeyValueEntry), changed func(jetstream.KeyValueEntry), tick func()) {
	// The client's own watch survives a lost connection, but notices a consumer that the server has forgotten only after two
	// missed heartbeats: ten seconds.
	reconnected := b.nc.StatusChanged(nats.CONNECTED)
	defer b.nc.RemoveStatusListener(reconnected)
	wait := retryFirst
	for ctx.Err() == nil {
		began, err := b.watch(ctx, reconnected, whole, changed, tick)
		if ctx.Err() != nil {
			return
		}
		if began {
			wait = retryFirst
		} else if wait == retryFirst {
			b.log.Warn("NATS cannot be read, what was read last stays in force", "bucket", b.config.Bucket, "error", err)
		}
		if err == nil {
			continue
		}
		retry := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-reconnected:
		case <-retry.C:
		}
		retry.Stop()
		wait = min(2*wait, retryMax)
	}
}

// watch follows the bucket until something ends the watch. began says whether it got as far as whole. A nil error means
// that NATS has been away and is back.
func (b *bucket) watch(
	ctx context.Context, reconnected <-chan nats.Status,
	whole func([]jetstream.KeyValueEntry), changed func(jetstream.KeyValueEntry), tick func(),
) (began bool, err error) {
	w, err := b.kv.WatchAll(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrStreamNotFound) {
		// NATS came back without its files.
		if _, err = b.js.CreateOrUpdateKeyValue(ctx, b.config); err == nil {
			b.log.Error("NATS had lost a bucket, it was made again and is empty", "bucket", b.config.Bucket)
			w, err = b.kv.WatchAll(ctx)
		}
	}
	if err != nil {
		return false, err
	}
	defer stop(w)
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	var initial []jetstream.KeyValueEntry
	for {
		select {
		case <-ctx.Done():
			return began, ctx.Err()
		case <-reconnected:
			return began, nil
		case <-ticker.C:
			if tick != nil && began {
				tick()
			}
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				return began, ErrDisconnected
			case e == nil:
				began = true
				whole(initial)
				initial = nil
			case !began:
				initial = append(initial, e)
			default:
				changed(e)
			}
		}
	}
}

const tickEvery = 30 * time.Second

// stop ends a watch. What it still has to hand over is taken from it, or its goroutine would wait for ever.
func stop(w jetstream.KeyWatcher) {
	go func() { // ends when the watch has
		for range w.Updates() {
		}
	}()
	_ = w.Stop() // fails only if it has ended
}

// until is ctx that also ends when closing is closed. The goroutine ends with it.
func until(ctx context.Context, closing <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
