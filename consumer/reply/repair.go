package reply

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// repairEvery is the pause between two checks of JetStream, and between two attempts of a failing restart.
	repairEvery = time.Second
	// probeBytes must fit onto the volume before JetStream is restarted: its recovery writes.
	probeBytes = 8 << 20
)

// repair restarts JetStream inside a running server when a stream cannot write any more. A stream that has met one write
// error, mostly of a full disk, refuses all further writes, even when the disk has room again; and JetStream itself shuts
// down on some errors. Core NATS, with the running replies, is not interrupted.
//
// Nothing is done while the volume has no room: the stream can still be read.
type repair struct {
	ns       *server.Server
	config   server.JetStreamConfig
	probe    func() error
	log      *slog.Logger
	broken   chan struct{} // holds a token after a stream reported that it cannot write
	restarts atomic.Int64

	quit chan struct{}
	done sync.WaitGroup
}

func newRepair(ns *server.Server, opts ServerOptions) *repair {
	r := &repair{
		ns: ns, config: server.JetStreamConfig{StoreDir: opts.Dir, MaxStore: opts.maxStore}, log: opts.Logger,
		probe: opts.probe, broken: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	if r.probe == nil {
		r.probe = func() error { return probe(opts.Dir) }
	}
	return r
}

func (r *repair) start() {
	if r != nil {
		r.done.Go(r.run)
	}
}

func (r *repair) stop() {
	if r != nil {
		close(r.quit)
		r.done.Wait()
	}
}

func (r *repair) run() {
	look := time.NewTicker(repairEvery)
	defer look.Stop()
	broken := false
	for {
		select {
		case <-r.quit:
			return
		case <-r.broken:
			broken = true
			r.log.Error("a JetStream stream cannot write; JetStream starts anew when its volume has room")
			continue
		case <-look.C:
		}
		if broken = broken || !r.ns.JetStreamEnabled(); !broken {
			continue
		}
		if err := r.probe(); err != nil {
			continue
		}
		if err := r.restart(); err != nil {
			r.log.Error("JetStream does not start", "error", err)
			continue
		}
		broken = false
	}
}

// restart takes milliseconds and the time to read the streams' indexes. Meanwhile JetStream does not answer clients.
func (r *repair) restart() error {
	if err := r.ns.ShutdownJetStream(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	select {
	case <-r.broken: // a token of the streams that were just closed
	default:
	}
	config := r.config
	if err := r.ns.EnableJetStream(&config); err != nil {
		return errors.Join(err, r.ns.ShutdownJetStream())
	}
	r.restarts.Add(1)
	r.log.Info("JetStream has started anew")
	return nil
}

// Restarts returns how many times JetStream was restarted.
func (s *Server) Restarts() int64 {
	if s.repair == nil {
		return 0
	}
	return s.repair.restarts.Load()
}

// probe writes a file into dir and removes it.
func probe(dir string) error {
	f, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, probeBytes))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
