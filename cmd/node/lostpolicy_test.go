package node_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/cmd/node"
)

// NATS has lost its folder and with it the policy. The kept copy is in force, and each interface that shows limits reports that.
//
// https://github.com/nats-io/nats-server/issues/7549
func TestExplainTellsThatNATSHasLostThePolicy(t *testing.T) {
	url, _ := startModel(t)
	o, key := options(t, node.Whole, url)
	n := start(t, o)
	if code, body := ask(t, n.Addrs().HTTP, key); code != http.StatusOK { // makes the bucket
		t.Fatalf("answer is %d %s", code, body)
	}
	apply, err := json.Marshal(admin.ApplyPolicy{Text: "version: 1\nlimits:\n  - {user: alice, model: m, rate: 5/s}\n", Author: "a"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+n.Addrs().Admin+"/api/v1/policy", strings.NewReader(string(apply)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("apply policy: %s, %v", answer.Status, err)
	}
	kept := filepath.Join(o.Data, "policy-in-force.json")
	for _, err := os.Stat(kept); err != nil; _, err = os.Stat(kept) { // the copy is written when this process hears of the policy
		select {
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(o.Data, "nats")); err != nil {
		t.Fatal(err)
	}
	n = start(t, o)
	at := "http://" + n.Addrs().Admin
	for path, field := range map[string]string{
		"/api/v1/explain?topic=requests&group=pool&bucket=alice__m": `"policy_notice"`,
		"/api/v1/policy": `"notice"`,
		"/readyz":        "",
		"/metrics":       "penstock_policy_lost 1",
	} {
		code, body := get(t, at+path)
		if code != http.StatusOK || !strings.Contains(body, field) || path != "/metrics" && !strings.Contains(body, "NATS has lost it") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}
