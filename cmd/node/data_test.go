package node_test

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstockmq/penstock/broker/datadir"
	"github.com/penstockmq/penstock/cmd/node"
)

// contents are the hashes of all files below a folder.
func contents(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	out := map[string][32]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = sha256.Sum256(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSecondNodeOnADataFolderTouchesNothing: a second process on the folder of a running
// one is refused before JetStream opens a file; on the same ports as well.
// https://github.com/formancehq/ledger/issues/1522
func TestSecondNodeOnADataFolderTouchesNothing(t *testing.T) {
	t.Parallel()
	o, _ := options(t, node.Broker|node.NATS|node.Admin, "http://127.0.0.1:1/v1")
	first := start(t, o)
	same := o
	same.GRPC, same.Admin, same.NATS = first.Addrs().GRPC, first.Addrs().Admin, first.Addrs().NATS
	for name, o := range map[string]node.Options{"other ports": o, "same ports": same} {
		before := contents(t, filepath.Join(o.Data, "nats"))
		n, err := node.Start(t.Context(), o)
		if err == nil {
			t.Error(name, "started", n.Stop())
			continue
		}
		if !errors.Is(err, datadir.ErrInUse) || !strings.Contains(err.Error(), o.Data) {
			t.Errorf("%s: got error %v, want one with the folder", name, err)
		}
		if after := contents(t, filepath.Join(o.Data, "nats")); !maps.Equal(before, after) {
			t.Errorf("%s: files of JetStream changed", name)
		}
	}
}

// TestStartNamesWhatIsWrongWithTheDataFolder: the folder is tried before anything is opened in it.
func TestStartNamesWhatIsWrongWithTheDataFolder(t *testing.T) {
	t.Parallel()
	o, _ := options(t, node.Broker|node.NATS, "http://127.0.0.1:1/v1")
	o.Data = filepath.Join(o.Data, "file")
	if err := os.WriteFile(o.Data, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := node.Start(t.Context(), o)
	if !errors.Is(err, datadir.ErrUnusable) || !strings.Contains(err.Error(), "not a folder") {
		t.Errorf("got error %v", err)
	}
}
