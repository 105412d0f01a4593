package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstockmq/penstock/broker/datadir"
	"github.com/penstockmq/penstock/cmd/node"
)

// TestKeysCreateBeforeAnyServer makes a key where nothing has run yet, as for a gateway
// on a machine of its own. The folder of a key file that was named is not made.
func TestKeysCreateBeforeAnyServer(t *testing.T) {
	t.Chdir(t.TempDir())
	create := func(args ...string) (code int, out, errOut bytes.Buffer) {
		code = run(append([]string{"keys", "create", "--user", "alice"}, args...), nil, strings.NewReader(""), &out, &errOut)
		return code, out, errOut
	}
	code, out, errOut := create("--data", "data")
	if code != exitOK || !strings.HasPrefix(out.String(), "sk-penstock-") {
		t.Errorf("exit code %d, printed %q, complained %q", code, out.String(), errOut.String())
	}
	if info, err := os.Stat("data"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data folder is %v, %v", info, err)
	}
	if code, _, _ := create("--keys", filepath.Join("tpyo", "keys.yaml")); code != exitFailed {
		t.Errorf("exit code %d for a key file in a folder that is not there", code)
	}
	if _, err := os.Stat("tpyo"); err == nil {
		t.Error("the folder of a named key file was made")
	}
}

// A second process on a data folder neither leaves a key file in it nor prints a key.
func TestNoFirstKeyInAFolderThatIsInUse(t *testing.T) {
	t.Parallel()
	o := node.Defaults()
	o.Data = t.TempDir()
	o.Keys = filepath.Join(o.Data, "keys.yaml")
	lock, err := datadir.Acquire(t.Context(), o.Data, 0)
	if err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel() // no wait for the holder
	var said strings.Builder
	if err := makeFirstKey(cancelled, &said, o); !errors.Is(err, datadir.ErrInUse) {
		t.Errorf("in use: got error %v, want ErrInUse", err)
	}
	if _, err := os.Stat(o.Keys); !errors.Is(err, fs.ErrNotExist) || said.Len() > 0 {
		t.Errorf("in use: key file: %v, printed %q; want neither", err, said.String())
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if err := makeFirstKey(t.Context(), &said, o); err != nil || said.Len() == 0 {
		t.Errorf("free: got error %v, printed %q", err, said.String())
	}
}
