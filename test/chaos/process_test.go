package chaos

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// buildDir is where the program is built; TestMain makes and removes it.
var buildDir string

// program returns the path of the penstock binary, built on first use. It has no race detector: the tests in test/ run the
// processes under it, and here it would only slow down the faults.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir, "penstock")
	if out, err := exec.Command("go", "build", "-o", path, "../../cmd/penstock").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build of the program: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	var err error
	if buildDir, err = os.MkdirTemp("", "penstock-chaos-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(buildDir) }()
	return m.Run()
}

const (
	// startMax bounds the time from exec to the ready line.
	startMax = 60 * time.Second
	// stopMax bounds the time from SIGTERM to the end.
	stopMax = 60 * time.Second
)

// process is one penstock that can be started again with the same arguments, so that it comes back at its addresses.
type process struct {
	name string
	args []string

	cmd    *exec.Cmd
	ready  chan struct{} // closed by the ready line
	exited chan struct{} // closed when the process is gone
	log    *logBuffer
}

// newProcess does not start it. It is killed at the end of the test, and its log shown if the test failed.
func newProcess(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{name: name, args: args, log: &logBuffer{}}
	t.Cleanup(func() {
		if p.cmd != nil {
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
			p.kill()
		}
		if t.Failed() {
			t.Logf("%s: end of its log:\n%s", p.name, p.log.tail(6000))
		}
	})
	return p
}

// errNotReady is returned by start for a process that neither serves nor ends.
var errNotReady = errors.New("not ready in time, and not ended")

// start returns when the process serves, or why it does not.
func (p *process) start(within time.Duration) error {
	path, err := program()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(path, p.args...)
	p.ready, p.exited = make(chan struct{}), make(chan struct{})
	p.log.add("==== " + p.name + " starts at " + time.Now().Format(time.RFC3339Nano))
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go p.read(p.cmd, bufio.NewScanner(out), p.ready, p.exited)
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.ready:
		return nil
	case <-p.exited:
		return fmt.Errorf("%s ended at its start: %v: %s", p.name, p.cmd.ProcessState, p.log.tail(400))
	case <-timer.C:
		return fmt.Errorf("%s: %w, after %v", p.name, errNotReady, within)
	}
}

func (p *process) read(cmd *exec.Cmd, lines *bufio.Scanner, ready, exited chan struct{}) {
	told := false
	for lines.Scan() {
		if !told && strings.HasPrefix(lines.Text(), "ready") {
			told = true
			close(ready)
		}
	}
	_ = cmd.Wait() // its state is in ProcessState
	close(exited)
}

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// stop sends SIGTERM and returns an error if the process does not end, or not with status 0.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s: SIGTERM: %w", p.name, err)
	}
	timer := time.NewTimer(stopMax)
	defer timer.Stop()
	select {
	case <-p.exited:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("%s: status %d after SIGTERM, want 0", p.name, code)
		}
		return nil
	case <-timer.C:
		p.kill()
		return fmt.Errorf("%s: still there %v after SIGTERM", p.name, stopMax)
	}
}

// peakMemory is the most that the process had resident since its start, in bytes; 0 where the system does not say.
func (p *process) peakMemory() int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// freeAddr returns a loopback address whose port was free a moment ago, below the ports that systems give to outgoing
// connections.
func freeAddr(t *testing.T) string {
	t.Helper()
	const first, last, tries = 15_000, 32_000, 100
	for range tries {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(last-first)))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// logBuffer keeps the last bytes that were written to it.
type logBuffer struct {
	mu sync.Mutex
	b  []byte // guarded by mu
	n  int64  // all bytes ever written; guarded by mu
}

const logKept = 1 << 20

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n += int64(len(p))
	if l.b = append(l.b, p...); len(l.b) > 2*logKept {
		l.b = append([]byte(nil), l.b[len(l.b)-logKept:]...)
	}
	return len(p), nil
}

func (l *logBuffer) add(line string) { _, _ = l.Write([]byte(line + "\n")) }

func (l *logBuffer) written() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

func (l *logBuffer) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b[max(0, len(l.b)-n):])
}
