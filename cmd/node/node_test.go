package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/cmd/node"
	"github.com/penstockmq/penstock/gateway"
)

// options are those of a node on free ports with its data in a temporary folder, one
// user's key and the upstream at url.
func options(t *testing.T, parts node.Parts, url string) (node.Options, string) {
	t.Helper()
	o := node.Defaults()
	o.Parts, o.Data = parts, t.TempDir()
	o.GRPC, o.HTTP, o.Admin, o.NATS = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	o.Keys, o.Workers, o.Grace = filepath.Join(o.Data, "keys.yaml"), 8, time.Second
	o.Models = []node.ModelOptions{{Name: node.Wildcard, URL: url}}
	secret, entry, err := gateway.NewKey("alice", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := gateway.AppendKey(o.Keys, entry); err != nil {
		t.Fatal(err)
	}
	return o, secret
}

func startModel(t *testing.T) (url string, calls func() []mockmodel.Call) {
	t.Helper()
	m, err := mockmodel.New(mockmodel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- m.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String() + "/v1", func() []mockmodel.Call { return m.Calls(0) }
}

func start(t *testing.T, o node.Options) *node.Node {
	t.Helper()
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

func ask(t *testing.T, addr, key string) (int, string) {
	t.Helper()
	body := strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

func TestWholeAnswers(t *testing.T) {
	url, calls := startModel(t)
	o, key := options(t, node.Whole, url)
	n := start(t, o)
	if line := n.Addrs().String(); !strings.HasPrefix(line, "ready grpc=127.0.0.1:") || strings.Contains(line, ":0 ") {
		t.Errorf("ready line is %q", line)
	}
	if code, body := ask(t, n.Addrs().HTTP, key); code != http.StatusOK || !strings.Contains(body, `"choices"`) {
		t.Fatalf("answer is %d %s", code, body)
	}
	if got := calls(); len(got) != 1 {
		t.Errorf("the model was called %d times, want once", len(got))
	}
	if code, body := get(t, "http://"+n.Addrs().Admin+"/readyz"); code != http.StatusOK {
		t.Errorf("readyz is %d %s", code, body)
	}
	_, metrics := get(t, "http://"+n.Addrs().Admin+"/metrics")
	for _, want := range []string{
		"penstock_broker_sends_total 1", `penstock_broker_buckets{topic="requests"} 1`,
		"penstock_store_commit_seconds_count", "penstock_broker_queue_seconds_count 1",
		"penstock_gateway_accepted_total 1", "penstock_pool_received_total 1", "penstock_pool_queue_seconds_count 1", "penstock_build_info{",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
	if strings.Contains(metrics, "alice") {
		t.Error("a metric names a user")
	}
	// What happens after the answer has gone out is there for sure when all has stopped.
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if acks := n.Broker().Metrics().Acks.Load(); acks != 1 {
		t.Errorf("%d acks, want 1", acks)
	}
	// The gauges of a closed broker cannot be had; the rest can.
	families, err := n.Registry().Gather()
	if err == nil {
		t.Error("the gauges of a closed broker are there")
	}
	for _, want := range []string{"penstock_gateway_requests_total", "penstock_gateway_request_seconds", "penstock_pool_upstream_seconds"} {
		if !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == want }) {
			t.Errorf("no %s after a request", want)
		}
	}
}

func TestSeparateProcesses(t *testing.T) {
	url, _ := startModel(t)
	o, key := options(t, node.Broker|node.NATS|node.Admin, url)
	broker := start(t, o)

	o.Parts, o.Broker, o.NATSURL = node.Gateway|node.Admin, broker.Addrs().GRPC, "nats://"+broker.Addrs().NATS
	front := start(t, o)
	o.Parts = node.Pool | node.Admin
	pool := start(t, o)

	if a := front.Addrs(); a.GRPC != "" || a.NATS != "" || a.HTTP == "" {
		t.Errorf("the gateway's addresses are %v", a)
	}
	if code, body := ask(t, front.Addrs().HTTP, key); code != http.StatusOK {
		t.Fatalf("answer is %d %s", code, body)
	}
	for name, n := range map[string]*node.Node{"gateway": front, "pool": pool} {
		if code, body := get(t, "http://"+n.Addrs().Admin+"/readyz"); code != http.StatusOK || !strings.Contains(body, `"broker":"ok"`) {
			t.Errorf("readyz of the %s is %d %s", name, code, body)
		}
		code, body := get(t, "http://"+n.Addrs().Admin+"/api/v1/topics")
		if code != http.StatusNotFound || !strings.Contains(body, `"no_broker"`) {
			t.Errorf("topics of the %s are %d %s", name, code, body)
		}
	}
}

func TestRestartKeepsTopicsAndGroups(t *testing.T) {
	url, _ := startModel(t)
	o, key := options(t, node.Whole, url)
	o.Topics = []node.TopicOptions{{Name: "batch", TTL: time.Hour}}
	o.Groups = []node.GroupOptions{{Name: "batch-workers", Topic: "batch", Wildcard: true}}
	for range 2 {
		n := start(t, o)
		if code, body := ask(t, n.Addrs().HTTP, key); code != http.StatusOK {
			t.Fatalf("answer is %d %s", code, body)
		}
		var names []string
		for _, g := range n.Broker().Groups() {
			names = append(names, g.Name)
		}
		if strings.Join(names, ",") != "batch-workers,pool" {
			t.Errorf("groups are %v", names)
		}
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	url, _ := startModel(t)
	for _, key := range []string{"grpc", "http", "admin"} {
		o, _ := options(t, node.Whole, url)
		for name, field := range map[string]*string{"grpc": &o.GRPC, "http": &o.HTTP, "admin": &o.Admin} {
			if name == key {
				*field = taken.Addr().String()
			}
		}
		n, err := node.Start(t.Context(), o)
		if err == nil {
			t.Fatalf("%s: started on an address in use: %v", key, n.Stop())
		}
		if !strings.Contains(err.Error(), key+": ") || !strings.Contains(err.Error(), "in use") {
			t.Errorf("%s: error is %q", key, err)
		}
	}
}

func TestFailureOfAPartStopsAll(t *testing.T) {
	url, _ := startModel(t)
	o, _ := options(t, node.Whole, url)
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Broker().Close(); err != nil { // as a store that fails does
		t.Fatal(err)
	}
	err = n.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "broker: ") {
		t.Errorf("Run returned %v, want the broker's end", err)
	}
}

func TestStartWaitsForNATSUntilToldToStop(t *testing.T) {
	url, _ := startModel(t)
	o, _ := options(t, node.Gateway, url)
	o.NATSURL = "nats://127.0.0.1:1" // nobody is there
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := node.Start(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Start returned %v, want the end of its context", err)
	}
}

func TestReadyChecks(t *testing.T) {
	url, _ := startModel(t)
	o, _ := options(t, node.Whole, url)
	n := start(t, o)
	_, body := get(t, "http://"+n.Addrs().Admin+"/readyz")
	var ready struct {
		Status string
		Checks map[string]string
	}
	if err := json.Unmarshal([]byte(body), &ready); err != nil {
		t.Fatal(err)
	}
	for _, check := range []string{"process", "nats", "broker"} {
		if ready.Checks[check] != "ok" {
			t.Errorf("check %s is %q", check, ready.Checks[check])
		}
	}
}
