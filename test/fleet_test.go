package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/gateway"
)

// fleet is a system of several processes: a broker with NATS and the policy, and the
// pools and gateways that a test starts. All models are one stub.
type fleet struct {
	*brokerNode
	stub *stub
	keys map[string]string // user to API key
	dir  string
}

// startFleet starts the broker and applies a policy, unless that is empty.
func startFleet(t *testing.T, text string, args ...string) *fleet {
	t.Helper()
	f := &fleet{stub: newStub(t), keys: map[string]string{}, dir: t.TempDir()}
	for _, user := range users {
		secret, entry, err := gateway.NewKey(user, "")
		must(t, err)
		must(t, gateway.AppendKey(f.file("keys.yaml"), entry))
		f.keys[user] = secret
	}
	config := "keys: " + f.file("keys.yaml") + "\nmodels:\n  - {name: \"*\", url: \"" + f.stub.url +
		"\", user-header: X-Penstock-User, first-byte-timeout: 1500ms}\nattempts: 1\n"
	must(t, os.WriteFile(f.file("penstock.yaml"), []byte(config), 0o600))
	f.brokerNode = startBroker(t, program, args...)
	if text != "" {
		f.apply(text)
	}
	return f
}

func (f *fleet) file(name string) string { return filepath.Join(f.dir, name) }

// launchPart begins to start a pool or a gateway; waitReady is for the caller, so that
// several start at the same time.
func (f *fleet) launchPart(part string, args ...string) *process {
	f.t.Helper()
	return launch(f.t, append([]string{
		part, "--config", f.file("penstock.yaml"), "--broker", f.grpc, "--nats-url", "nats://" + f.nats, "--data", f.t.TempDir(),
		"--admin", "127.0.0.1:0", "--log-level", "info",
	}, args...)...)
}

// pools starts so many consumer pools.
func (f *fleet) pools(n int, args ...string) []*process {
	f.t.Helper()
	pools := make([]*process, n)
	for i := range pools {
		pools[i] = f.launchPart("consumer", args...)
	}
	for _, p := range pools {
		p.waitReady()
	}
	return pools
}

// gateway starts one.
func (f *fleet) gateway(args ...string) *system {
	f.t.Helper()
	p := f.launchPart("gateway", append([]string{"--http", "127.0.0.1:0"}, args...)...)
	p.waitReady()
	return &system{process: p, stub: f.stub, keys: f.keys, dir: f.dir}
}

// apply puts a policy in force with the operations command, and returns when it says
// that it is.
func (p *process) apply(text string) {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "policy.yaml")
	must(p.t, os.WriteFile(file, []byte("version: 1\n"+text), 0o600))
	run(p.t, "policy", "apply", file, "--admin", p.ready["admin"], "--author", "test")
}

// explain says where the next message of a bucket stands.
func (p *process) explain(user, model string) (e admin.Explanation) {
	p.t.Helper()
	text := run(p.t, "explain", "--bucket", user+"/"+model, "--admin", p.ready["admin"], "--json")
	must(p.t, json.Unmarshal([]byte(text), &e))
	return e
}

// request calls the admin port and returns the status and the body.
func (p *process) request(method, path, body string) (int, string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), enough)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.ready["admin"]+path, bytes.NewReader([]byte(body)))
	must(p.t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	must(p.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(p.t, err)
	return resp.StatusCode, string(text)
}

// query is a GET of the operations API.
func (p *process) query(path string, into any) {
	p.t.Helper()
	code, text := p.request(http.MethodGet, "/api/v1/"+path, "")
	if code != http.StatusOK {
		p.t.Fatalf("GET %s is %d %s", path, code, text)
	}
	must(p.t, json.Unmarshal([]byte(text), into))
}

// producerOf sends to the broker of a process as the gateway does.
func (p *process) producerOf() mq.Producer {
	p.t.Helper()
	producer, err := mq.NewProducer(mq.Stubs, mq.Options{Endpoint: p.ready["grpc"]})
	must(p.t, err)
	p.t.Cleanup(func() { _ = producer.Close() }) // its broker may be gone
	return producer
}

// queue puts n requests of a user for a model into their bucket, for nobody who waits.
func queue(t *testing.T, p mq.Producer, user, model string, n int) {
	t.Helper()
	for range n {
		must(t, sendTo(t.Context(), p, user, model, "queued"))
	}
}

// sendTo is sendRequest for any model.
func sendTo(ctx context.Context, p mq.Producer, user, model, text string) error {
	name, err := lite.Encode(lite.Cell{User: user, Model: model})
	if err != nil {
		return err
	}
	_, err = p.Send(ctx, mq.Outgoing{
		Topic: topic, Lite: name,
		Body:       fmt.Appendf(nil, `{"model":%q,"user":%q,"messages":[{"role":"user","content":%q}]}`, model, user, text),
		Properties: reply.Request{User: user, Model: model, Path: "/v1/chat/completions"}.Properties(),
	})
	return err
}

// feeding sends at an even rate until the test ends, or until the function it returns is called.
func feeding(t *testing.T, perSecond int, send func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-tick.C:
			}
			if err := send(ctx); err != nil && ctx.Err() == nil {
				done <- err
				return
			}
		}
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// between counts the calls of the model that began in [from, to) and that ok takes; a nil ok takes all.
func (s *stub) between(from, to time.Time, ok func(mockmodel.Call) bool) (n int) {
	for _, c := range s.Calls(0) {
		if !c.Began.Before(from) && c.Began.Before(to) && (ok == nil || ok(c)) {
			n++
		}
	}
	return n
}

// first is when the first call that ok takes began.
func (s *stub) first(what string, ok func(mockmodel.Call) bool) (at time.Time) {
	s.t.Helper()
	s.wait(what, func(mockmodel.Stats) bool {
		for _, c := range s.Calls(0) {
			if ok(c) {
				at = c.Began
				return true
			}
		}
		return false
	})
	return at
}

func ofUser(user string) func(mockmodel.Call) bool {
	return func(c mockmodel.Call) bool { return c.User == user }
}

func ofModel(model string) func(mockmodel.Call) bool {
	return func(c mockmodel.Call) bool { return c.Model == model }
}

// near says whether a count is what was wanted, give or take.
func near(got int, want, tolerance float64) bool {
	return float64(got) >= want-tolerance && float64(got) <= want+tolerance
}

// inside returns at a moment after which the clock's present span of this length, such as
// a minute, goes on for at least as long as the test needs it.
func inside(t *testing.T, span, needed time.Duration) {
	t.Helper()
	now := time.Now()
	if end := now.Truncate(span).Add(span); end.Sub(now) < needed {
		until(t, end)
	}
}

// posted is what came of a request without the SDK.
type posted struct {
	status int
	header http.Header
	body   string
	took   time.Duration // until the whole answer was there
}

// post asks for a chat completion without the SDK. headers are "Name: value"; an empty
// key sends none.
func (s *system) post(client *http.Client, key, body string, headers ...string) (posted, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), enough)
	defer cancel()
	return s.postIn(ctx, client, key, body, headers...)
}

func (s *system) postIn(ctx context.Context, client *http.Client, key, body string, headers ...string) (posted, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.ready["http"]+"/v1/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return posted{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	began := time.Now()
	resp, err := client.Do(r)
	if err != nil {
		return posted{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return posted{resp.StatusCode, resp.Header, string(text), time.Since(began)}, err
}

// postEach makes n requests, so many at a time, each with a connection of its own, and
// hands their answers to take, one after the other.
func (s *system) postEach(n, parallel int, ask func(client *http.Client, i int) (posted, error), take func(i int, p posted)) {
	s.t.Helper()
	var mu sync.Mutex // take is not called twice at once
	var next atomic.Int64
	var g errgroup.Group
	for range parallel {
		g.Go(func() error {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				p, err := ask(client, i)
				if err != nil {
					return err
				}
				mu.Lock()
				take(i, p)
				mu.Unlock()
			}
			return nil
		})
	}
	must(s.t, g.Wait())
}
