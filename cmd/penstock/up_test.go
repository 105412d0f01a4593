package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestUp runs the command as a person would the first time: it makes a key, serves,
// answers a request that comes with the key, and leaves on SIGTERM.
func TestUp(t *testing.T) {
	t.Chdir(t.TempDir())
	first := startUp(t)
	secret := regexp.MustCompile(`sk-penstock-\S+`).FindString(first.errOut.String())
	if secret == "" {
		t.Fatalf("no key in %q", first.errOut.String())
	}
	if code := first.chat(t, secret); code != http.StatusOK {
		t.Errorf("chat is %d", code)
	}
	if code := first.chat(t, secret+"x"); code != http.StatusUnauthorized {
		t.Errorf("chat with a wrong key is %d", code)
	}
	first.stop(t)
	info, err := os.Stat(filepath.Join("data", "keys.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the key file is %v", info.Mode())
	}

	// The second time the key is there.
	second := startUp(t)
	if strings.Contains(second.errOut.String(), "sk-penstock-") {
		t.Error("a second start made another key")
	}
	if code := second.chat(t, secret); code != http.StatusOK {
		t.Errorf("chat after a restart is %d", code)
	}
	second.stop(t)
}

// TestUpMakesNoKeyForNothing starts with a setting that only the command knows to be wrong.
func TestUpMakesNoKeyForNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	var errOut bytes.Buffer
	if code := run([]string{"up", "--mock", "--log-level", "loud"}, nil, strings.NewReader(""), io.Discard, &errOut); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	if text := errOut.String(); strings.Contains(text, "sk-penstock-") || !strings.Contains(text, "log-level") {
		t.Errorf("said %q, want only what is wrong with log-level", text)
	}
}

type running struct {
	http   string
	errOut *bytes.Buffer // written by the command until it has ended, but for what comes before the ready line
	code   chan int
}

func startUp(t *testing.T) *running {
	t.Helper()
	r := &running{errOut: new(bytes.Buffer), code: make(chan int, 1)}
	out, w := io.Pipe()
	args := []string{
		"up", "--mock", "--data", "data", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--nats", "127.0.0.1:0",
		"--log-level", "error",
	}
	go func() {
		code := run(args, nil, strings.NewReader(""), w, r.errOut)
		w.Close()
		r.code <- code
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("no ready line: %v, %s, exit code %d", err, r.errOut, <-r.code)
	}
	m := regexp.MustCompile(`^ready grpc=127\.0\.0\.1:\d+ http=(127\.0\.0\.1:\d+) admin=127\.0\.0\.1:\d+ nats=127\.0\.0\.1:\d+\n$`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("ready line is %q", line)
	}
	r.http = m[1]
	return r
}

// stop sends this process the signal that the command listens for.
func (r *running) stop(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case code := <-r.code:
		if code != exitOK {
			t.Fatalf("exit code %d: %s", code, r.errOut)
		}
	case <-ctx.Done():
		t.Fatal("it does not stop")
	}
}

func (r *running) chat(t *testing.T, key string) int {
	t.Helper()
	body := strings.NewReader(`{"model":"any","messages":[{"role":"user","content":"hello"}]}`)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.http+"/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Authorization", "Bearer "+key)
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode
}
