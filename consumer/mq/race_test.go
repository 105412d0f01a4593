//go:build race

package mq_test

import (
	"os"
	"os/exec"
	"testing"
)

const raceDetector = true

// The official client v5.1.4 writes its settings on one goroutine and reads them on others, which the detector holds against
// whatever test is running. So its tests run in a process of their own that is built without the detector.
func TestOfficialWithoutTheRaceDetector(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-run=/^official$", ".")
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
