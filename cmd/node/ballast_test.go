package node

import (
	"log/slog"
	"testing"

	"github.com/penstockmq/penstock/broker/datadir"
)

// TestBallastIsGivenUpOnAFullVolumeOnly: the configured reserve decides when the volume is full.
func TestBallastIsGivenUpOnAFullVolumeOnly(t *testing.T) {
	t.Parallel()
	n := &Node{opts: Options{Data: t.TempDir(), DiskReserve: MiB}, log: slog.New(slog.DiscardHandler)}
	room, err := n.room()
	if err != nil {
		t.Fatal(err)
	}
	if room.Free < 8*int64(MiB) {
		t.Skip("the volume of the temporary folder is full")
	}
	again := n.putBallast()
	if !again {
		t.Skip("the file system of the temporary folder cannot set blocks aside")
	}
	if !datadir.HasBallast(n.opts.Data) {
		t.Fatal("no ballast is set aside on a volume with room")
	}
	if after, err := n.room(); err != nil || after.Free < room.Free/2 {
		t.Errorf("room %+v, %v: the ballast does not count as free", after, err)
	}
	if err := n.dropBallast(); err != nil || !datadir.HasBallast(n.opts.Data) {
		t.Errorf("with room the ballast is given up: %v", err)
	}
	n.opts.DiskReserve = 0
	if n.putBallast() {
		t.Error("without a reserve a ballast is set aside")
	}
	if err := n.dropBallast(); err != nil || datadir.HasBallast(n.opts.Data) {
		t.Errorf("without a reserve the ballast stays: %v", err)
	}
}
