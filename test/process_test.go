package test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
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

// program is the path of the penstock binary, built once by TestMain with the
// race detector, so that the processes are watched as the tests are.
var program string

// quickProgram is the path of a second binary, built on first use without the race
// detector: for tests of very many buckets, and of how fast a process can be killed.
var quickProgram = sync.OnceValues(func() (string, error) {
	path := program + "-quick"
	out, err := exec.Command("go", "build", "-o", path, "../cmd/penstock").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build of the program: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

// programSwitch names the program to a second test process, see TestOfficialClient.
const programSwitch = "PENSTOCK_TEST_PROGRAM"

func runTests(m *testing.M) int {
	if program = os.Getenv(programSwitch); program != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "penstock-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program = filepath.Join(dir, "penstock")
	build := exec.Command("go", "build", "-race", "-o", program, "../cmd/penstock")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build of the program: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// process is one running penstock.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	// ready is what the ready line names: grpc, http, admin.
	ready     map[string]string
	readyLine chan map[string]string
	// exited is closed when the process is gone; err is how it ended.
	exited chan struct{}
	err    error
	log    *syncBuffer // standard error
	lines  *syncBuffer // standard output
}

// startTimeout bounds the wait for a ready line; a loaded machine with the race
// detector is slow.
const startTimeout = 90 * time.Second

// start runs the program and returns when it printed its ready line. The process
// is killed at the end of the test, and its log shown when the test failed.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := launch(t, args...)
	p.waitReady()
	return p
}

func launch(t *testing.T, args ...string) *process {
	t.Helper()
	return launchProgram(t, program, args...)
}

func launchProgram(t *testing.T, program string, args ...string) *process {
	t.Helper()
	// A race ends the process with a status that no test expects.
	return launchWith(t, program, "GORACE=halt_on_error=1 exitcode=66", args...)
}

// startOfficial is start for a process that runs the official client, which has data
// races of its own: they are let pass, and any other fails the test at its end.
func startOfficial(t *testing.T, args ...string) *process {
	t.Helper()
	p := launchWith(t, program, "GORACE=halt_on_error=0 exitcode=0", args...)
	t.Cleanup(func() {
		p.kill()
		for _, report := range strings.Split(p.log.String(), "WARNING: DATA RACE")[1:] {
			report, _, _ = strings.Cut(report, "==================")
			if !strings.Contains(report, "apache/rocketmq-clients/golang/v5.") {
				t.Errorf("data race:%s", report)
			}
		}
	})
	p.waitReady()
	return p
}

func launchWith(t *testing.T, program, race string, args ...string) *process {
	t.Helper()
	p := &process{t: t, readyLine: make(chan map[string]string, 1), exited: make(chan struct{}), log: &syncBuffer{}, lines: &syncBuffer{}}
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append(os.Environ(), race)
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(out)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("penstock %s: log:\n%s", strings.Join(args, " "), tail(p.log.String(), 8000))
		}
	})
	return p
}

// read collects standard output, finds the ready line in it, and reaps the process.
func (p *process) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		fmt.Fprintln(p.lines, line)
		if rest, ok := strings.CutPrefix(line, "ready"); ok {
			p.readyLine <- fields(rest)
		}
	}
	p.err = p.cmd.Wait()
	close(p.exited)
}

// fields reads "a=1 b=2".
func fields(s string) map[string]string {
	m := map[string]string{}
	for f := range strings.FieldsSeq(s) {
		if k, v, ok := strings.Cut(f, "="); ok {
			m[k] = v
		}
	}
	return m
}

func (p *process) waitReady() {
	p.t.Helper()
	select {
	case p.ready = <-p.readyLine:
	case <-p.exited:
		p.t.Fatalf("%v ended before it was ready: %v; log:\n%s", p.cmd.Args, p.err, tail(p.log.String(), 8000))
	case <-time.After(startTimeout):
		p.t.Fatalf("%v is not ready after %v; log:\n%s", p.cmd.Args, startTimeout, tail(p.log.String(), 8000))
	}
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// stop sends SIGTERM and returns the exit status.
func (p *process) stop() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(startTimeout):
		p.t.Fatalf("%v does not stop; log:\n%s", p.cmd.Args, tail(p.log.String(), 8000))
	}
	return p.cmd.ProcessState.ExitCode()
}

// run runs the program to its end and returns what it printed on standard output.
func run(t *testing.T, args ...string) string {
	t.Helper()
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("penstock %s: %v\n%s", strings.Join(args, " "), err, log.String())
	}
	return out.String()
}

// freeAddr returns a loopback address whose port was free a moment ago: for a
// server that has to come back at the same place. The port is below those that
// systems give to outgoing connections: clients that try again and again while the
// server is down would take one of those sooner or later.
func freeAddr(t *testing.T) string {
	t.Helper()
	const first, last, tries = 15_000, 32_000, 100
	var err error
	for range tries {
		var l net.Listener
		l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(last-first))))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal(err)
	return ""
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// syncBuffer is a bytes.Buffer for one writer and one reader.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
