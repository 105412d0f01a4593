package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
