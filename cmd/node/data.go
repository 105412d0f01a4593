package node

import (
	"context"
	"errors"
	"time"

	"github.com/penstockmq/penstock/broker/datadir"
)

// StoreFolder is the broker's store within the data folder.
const StoreFolder = "store"

// ballastInterval is the pause between two tries to restore the ballast.
const ballastInterval = 10 * time.Second

// startData takes the data folder for this process and checks that it is usable, before the
// store or JetStream open a file in it and before any port is opened: a second process must
// not touch the files of the first.
func (n *Node) startData(ctx context.Context) error {
	if n.opts.Parts&(Broker|NATS) == 0 {
		return nil
	}
	lock, err := datadir.Acquire(ctx, n.opts.Data, datadir.LockWait)
	if err != nil {
		return err
	}
	n.onClose(base, lock.Release) // as the first closer of the last stage it runs last
	if err := n.dropBallast(); err != nil {
		return err
	}
	return datadir.Probe(ctx, n.opts.Data)
}

// room is the free space on the volume of the data folder plus the ballast.
func (n *Node) room() (datadir.Space, error) { return datadir.Room(n.opts.Data) }

// dropBallast frees space for a start on a full volume: the start first writes the content
// of the log to tables.
func (n *Node) dropBallast() error {
	if !datadir.HasBallast(n.opts.Data) {
		return nil
	}
	room, err := n.room()
	if err != nil {
		return err
	}
	reserve := room.Reserve(int64(n.opts.DiskReserve))
	if room.Free >= reserve && reserve > 0 {
		return nil
	}
	n.log.Warn("disk nearly full: the ballast is given up for this start", "free_bytes", room.Free, "reserve_bytes", reserve)
	return datadir.DropBallast(n.opts.Data)
}

// keepBallast restores the ballast whenever the volume has room for it beside the reserve.
func (n *Node) keepBallast(ctx context.Context) error {
	ticker := time.NewTicker(ballastInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if !n.putBallast() {
			<-ctx.Done()
			return nil
		}
	}
}

// putBallast reports whether another try is useful.
func (n *Node) putBallast() bool {
	if n.opts.DiskReserve == 0 {
		return false
	}
	if datadir.HasBallast(n.opts.Data) {
		return true
	}
	room, err := n.room()
	if err != nil {
		return true // the broker logs the error
	}
	reserve := room.Reserve(int64(n.opts.DiskReserve))
	size := datadir.Ballast(reserve)
	if size == 0 || room.Free < reserve+size {
		return true
	}
	switch err := datadir.PutBallast(n.opts.Data, size); {
	case errors.Is(err, errors.ErrUnsupported):
		n.log.Info("no ballast: the file system cannot set blocks aside; a start on a full disk may need room made by hand")
		return false
	case err != nil:
		n.log.Warn("ballast not set aside", "error", err)
	}
	return true
}
