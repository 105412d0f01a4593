package chaos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	diskSize    = "384m"
	ballastSize = 64 << 20
	diskReserve = "32MiB"
	// diskBody is the body of a message that fills the disk.
	diskBody = 64 << 10
	// refusalsAtFull is the number of consecutive refusals that show a full disk.
	refusalsAtFull = 20
)

// fullDisk fills the disk under a broker by sending. The broker refuses further sends with a code, still serves its
// consumers, and takes sends again when there is space, without a restart. Nothing that it acknowledged is lost.
func fullDisk(t *testing.T) tally {
	t.Helper()
	data := mountDisk(t)
	var sum tally
	j := newJournal(requestLease)
	s := newSystem(t, j, layoutSplit, filepath.Join(data, "data"), "http://127.0.0.1:9/v1")
	s.procs = s.procs[:1] // the broker
	s.procs[0].args = append(s.procs[0].args, "--disk-reserve", diskReserve)
	ballast := filepath.Join(data, "ballast")
	if err := os.WriteFile(ballast, make([]byte, ballastSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	m := newMessages(t, j, s.grpc, diskBody)
	if full := m.fill(t.Context()); !full {
		t.Fatal("the disk is not full after all sends: its size does not fit the test")
	}
	if !s.procs[0].alive() {
		t.Fatalf("a full disk ended the broker: %v", s.procs[0].cmd.ProcessState)
	}
	sum.damages++
	t.Log(time.Now().UTC().Format(clockFormat), "the disk is full")
	m.servesConsumers(t)
	t.Log(time.Now().UTC().Format(clockFormat), "messages were acked")

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	m.takesSendsAgain(t)
	t.Log(time.Now().UTC().Format(clockFormat), "a send was taken after space came back")
	m.consume()
	m.drain()
	s.checkEmpty(messageTopic)
	t.Log(time.Now().UTC().Format(clockFormat), "all messages are acked")
	if err := m.send("after"); err != nil {
		j.find(ruleState, "broker", "after the drain a send is refused: %v", err)
	}
	// A kill of the broker must find a store that opens.
	s.hit(strike{fault: faultKill}, &sum)
	m.consume()
	m.drain()
	s.stop()
	return conclude(t, j, sum)
}

// mountDisk mounts a small tmpfs, or skips the test without the permission to mount.
func mountDisk(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("the full disk is not tried: a tmpfs is mounted by root on Linux only")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+diskSize, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("the full disk is not tried: mount of a tmpfs: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount %s: %v: %s", dir, err, out)
		}
	})
	return dir
}

// fill sends until refusalsAtFull sends in a row are not answered OK. Each refusal must have a code: a lost connection means
// that the broker is gone.
func (m *messages) fill(ctx context.Context) bool {
	const senders, sends = 16, 8 << 10
	var refused, sent atomic.Int64
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for refused.Load() < refusalsAtFull && sent.Add(1) <= sends && ctx.Err() == nil {
				err := m.send(fmt.Sprintf("full-%d", i))
				switch {
				case err == nil:
					refused.Store(0)
				case isRefusal(err):
					refused.Add(1)
				default:
					m.j.find(ruleState, "broker", "a send to a full disk: %v", err)
					refused.Add(refusalsAtFull)
				}
			}
		})
	}
	wg.Wait()
	return refused.Load() >= refusalsAtFull
}

// servesConsumers lets a consumer read and ack for a while.
func (m *messages) servesConsumers(t *testing.T) {
	t.Helper()
	const enough = 100
	m.consume()
	acked := 0
	for deadline := time.Now().Add(30 * time.Second); acked < enough && time.Now().Before(deadline); pause(t.Context(), 100*time.Millisecond) {
		acked = 0
		m.j.change(func() {
			for _, s := range m.j.h.messages {
				if !s.acked.IsZero() {
					acked++
				}
			}
		})
	}
	m.stopConsumer()
	m.consumer.Wait()
	if acked < enough {
		m.j.find(ruleState, "broker", "%d messages were acked in 30 s with a full disk, want %d", acked, enough)
	}
}

// takesSendsAgain sends until one is answered OK.
func (m *messages) takesSendsAgain(t *testing.T) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); pause(t.Context(), 200*time.Millisecond) {
		if err = m.send("freed"); err == nil {
			return
		}
	}
	m.j.find(ruleState, "broker", "30 s after space came back a send is refused: %v", err)
	if strings.Contains(err.Error(), "rpc error") {
		t.FailNow()
	}
}

// isRefusal reports whether a send was refused with a code of RocketMQ, as opposed to a lost connection.
func isRefusal(err error) bool {
	return err != nil && !strings.HasPrefix(err.Error(), "rpc error")
}
