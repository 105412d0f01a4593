package test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/gateway"
)

const (
	// enough bounds what should take milliseconds; only a broken test waits it out.
	enough = 30 * time.Second
	// slack is what a loaded machine with the race detector may add to a time that a
	// case asks for. Where a test uses it, the fault it looks for is slower by far.
	slack = time.Second
)

// model is the one that the systems of these tests serve.
const model = "m"

// stub is the test model server: it records the calls and does as it is told.
type stub struct {
	*mockmodel.Server
	t   *testing.T
	url string // as upstreams are configured
}

func newStub(t *testing.T) *stub {
	t.Helper()
	server, err := mockmodel.New(mockmodel.Options{})
	must(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("stub: %v", err)
		}
	})
	return &stub{Server: server, t: t, url: "http://" + ln.Addr().String() + "/v1"}
}

// on makes calls whose body holds text behave otherwise; an empty text is all calls.
func (s *stub) on(text string, apply func(*mockmodel.Behaviour)) {
	s.AddRule(mockmodel.Rule{Contains: text, Apply: apply})
}

// wait returns when ok holds, and ends the test when it does not within enough.
func (s *stub) wait(what string, ok func(mockmodel.Stats) bool) {
	s.t.Helper()
	s.waitFor(enough, what, ok)
}

func (s *stub) waitFor(d time.Duration, what string, ok func(mockmodel.Stats) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	if err := s.Wait(ctx, ok); err != nil {
		s.t.Fatalf("stub: %s: %v; %+v", what, err, s.Stats())
	}
}

func open(n int64) func(mockmodel.Stats) bool {
	return func(s mockmodel.Stats) bool { return s.Open == n }
}

// setup is what a system is started with beside the defaults of these tests.
type setup struct {
	model  string   // further fields of the model's entry, such as "concurrency: 2"
	config string   // further lines of the configuration file
	limits string   // rules of the policy file, each a line "  - {...}"
	live   string   // a policy that is applied, in place of a policy file
	args   []string // further arguments
}

// system is a running `penstock up` in front of a stub, with a configuration file,
// a policy file and a key file.
type system struct {
	*process
	stub *stub
	keys map[string]string // user to API key
	dir  string
}

// users have a key each.
var users = [...]string{"alice", "bob", "carol"}

func up(t *testing.T, s setup) *system {
	t.Helper()
	sys := &system{stub: newStub(t), keys: map[string]string{}, dir: t.TempDir()}
	for _, user := range users {
		secret, entry, err := gateway.NewKey(user, "")
		must(t, err)
		must(t, gateway.AppendKey(sys.file("keys.yaml"), entry))
		sys.keys[user] = secret
	}
	config := "keys: " + sys.file("keys.yaml") + "\n" + s.config
	if s.live == "" {
		config += "\npolicy: " + sys.file("policy.yaml")
	}
	config += "\nmodels:\n  - {name: " + model + ", url: \"" + sys.stub.url + "\", user-header: X-Penstock-User"
	if s.model != "" {
		config += ", " + s.model
	}
	must(t, os.WriteFile(sys.file("penstock.yaml"), []byte(config+"}\n"), 0o600))
	must(t, os.WriteFile(sys.file("policy.yaml"), []byte("version: 1\nlimits:\n"+s.limits), 0o600))
	args := append([]string{
		"up", "--config", sys.file("penstock.yaml"), "--data", sys.file("data"), "--log-level", "info",
		"--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--nats", "127.0.0.1:0",
	}, s.args...)
	if slices.Contains(s.args, "official") {
		sys.process = startOfficial(t, args...)
	} else {
		sys.process = start(t, args...)
	}
	if s.live != "" {
		sys.apply(s.live)
	}
	return sys
}

func (s *system) file(name string) string { return filepath.Join(s.dir, name) }

// ask is a client of the OpenAI SDK, unmodified, that never retries by itself.
func (s *system) ask(user string) *openai.Client {
	client := openai.NewClient(option.WithBaseURL("http://"+s.ready["http"]+"/v1"), option.WithAPIKey(s.keys[user]),
		option.WithMaxRetries(0), option.WithRequestTimeout(2*enough))
	return &client
}

// direct is the same client without Penstock in between.
func (s *stub) direct() *openai.Client {
	client := openai.NewClient(option.WithBaseURL(s.url), option.WithAPIKey("any"), option.WithMaxRetries(0))
	return &client
}

func chat(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
	}
}

// answer is what became of a call of the SDK.
type answer struct {
	text   string // of the completion
	status int    // 200 or that of the error; 0 if there was no HTTP answer
	code   string // of the error
	kind   string // its type
	err    error
	header http.Header
	took   time.Duration
}

// complete asks for one chat completion.
func (s *system) complete(ctx context.Context, user, text string, opts ...option.RequestOption) answer {
	var resp *http.Response
	began := time.Now()
	c, err := s.ask(user).Chat.Completions.New(ctx, chat(text), append(opts, option.WithResponseInto(&resp))...)
	a := answer{err: err, took: time.Since(began)}
	if resp != nil {
		a.status, a.header = resp.StatusCode, resp.Header
	}
	if refused, ok := errors.AsType[*openai.Error](err); ok {
		a.status, a.code, a.kind = refused.StatusCode, refused.Code, refused.Type
		a.header = refused.Response.Header
	}
	if err == nil && len(c.Choices) == 1 {
		a.text = c.Choices[0].Message.Content
	}
	return a
}

// begin is complete on its own goroutine.
func (s *system) begin(ctx context.Context, user, text string, opts ...option.RequestOption) <-chan answer {
	done := make(chan answer, 1)
	go func() { done <- s.complete(ctx, user, text, opts...) }()
	return done
}

// succeeds asks and wants an answer of the model.
func (s *system) succeeds(user, text string) answer {
	s.t.Helper()
	a := s.complete(s.t.Context(), user, text)
	if a.err != nil || a.text == "" {
		s.t.Fatalf("request %q: status %d, text %q, error %v", text, a.status, a.text, a.err)
	}
	return a
}

// hold keeps the user's bucket shut as an operator does; the returned function opens it.
func (s *system) hold(user string) (lift func()) {
	s.t.Helper()
	run(s.t, "suspends", "set", "--admin", s.ready["admin"], "--user", user, "--model", model, "--for", "10m")
	return func() {
		s.t.Helper()
		run(s.t, "suspends", "lift", "--admin", s.ready["admin"], "--user", user, "--model", model)
	}
}

// metric reads one metric: the sum of all its label sets. name may have a label set
// itself.
func (p *process) metric(name string) float64 {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.ready["admin"]+"/metrics", http.NoBody)
	must(p.t, err)
	resp, err := http.DefaultClient.Do(r)
	must(p.t, err)
	defer resp.Body.Close()
	sum, found := 0.0, false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		must(p.t, err)
		sum, found = sum+v, true
	}
	if !found {
		p.t.Fatalf("there is no metric %s", name)
	}
	return sum
}

// metrics wants the values of several metrics now.
func (p *process) metrics(want map[string]float64) {
	p.t.Helper()
	for name, v := range want {
		if got := p.metric(name); got != v {
			p.t.Errorf("%s is %v, want %v", name, got, v)
		}
	}
}

// waitMetric looks at a metric until it is v.
func (p *process) waitMetric(name string, v float64) {
	p.t.Helper()
	p.waitMetricFor(enough, name, v)
}

func (p *process) waitMetricFor(d time.Duration, name string, v float64) {
	p.t.Helper()
	var got float64
	watch(p.t, d, func() bool { got = p.metric(name); return got == v }, func() string {
		return fmt.Sprintf("%s is %v, want %v", name, got, v)
	})
}

// watch asks a server, which cannot call back, until ok or until d has passed.
func watch(t *testing.T, d time.Duration, ok func() bool, why func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("after %v: %s", d, why())
		}
	}
}

// get reads JSON from the operations API.
func (s *system) get(path string, into any) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.ready["admin"]+"/api/v1/"+path, http.NoBody)
	must(s.t, err)
	resp, err := http.DefaultClient.Do(r)
	must(s.t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("GET %s: %s", path, resp.Status)
	}
	must(s.t, json.NewDecoder(resp.Body).Decode(into))
}

// await is a receive from c that ends the test when nothing comes.
func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(enough):
		t.Fatalf("%s: nothing after %v", what, enough)
		panic("not reached")
	}
}

// until waits for an instant: where a test is about a time, that time has to pass.
func until(t *testing.T, at time.Time) {
	t.Helper()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
