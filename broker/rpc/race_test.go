//go:build race

package rpc

import (
	"os"
	"os/exec"
	"testing"
)

// TestOfficialClientsWithoutTheRaceDetector runs the tests of official_test.go: the
// official client v5.1.4 writes its settings on one goroutine and reads them on
// others, which the detector holds against whatever test is running. So those tests
// run in a process of their own that is built without it.
func TestOfficialClientsWithoutTheRaceDetector(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-run=^TestOfficialClient", ".")
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
