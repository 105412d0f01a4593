package node

import (
	"context"

	"github.com/penstockmq/penstock/broker/datadir"
)

// StoreFolder is the broker's store within the data folder.
const StoreFolder = "store"

// startData takes the data folder for this process and finds out whether it can be
// worked in, before the store or JetStream open a file of it and before any port is
// opened: a second process must not touch what the first one has open.
func (n *Node) startData(ctx context.Context) error {
	if n.opts.Parts&(Broker|NATS) == 0 {
		return nil
	}
	lock, err := datadir.Acquire(ctx, n.opts.Data, datadir.LockWait)
	if err != nil {
		return err
	}
	n.onClose(base, lock.Release) // the first closer of the last stage: it runs last
	return datadir.Probe(ctx, n.opts.Data)
}
