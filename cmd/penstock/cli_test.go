package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// canned answers, by method and path.
var canned = map[string]string{
	"GET /api/v1/topics/requests/buckets": `{"buckets":[
		{"name":"alice__gpt-4o","user":"alice","model":"gpt-4o","level":1,"queued":12,"bytes":6144,"head":3,"tail":15,
		 "created":"2026-01-02T03:04:05Z","last_active":"2026-01-02T03:05:06.789Z","status":"active",
		 "groups":[{"group":"pool","floor":3,"queued":11,"leased":1,"returned":0,
		   "suspend":{"scope":"bucket","name":"alice__gpt-4o","until":"2026-01-02T04:00:00Z","by":"operator","reason":"maintenance"}}]},
		{"name":"orders","level":1,"queued":0,"bytes":0,"head":7,"tail":7,"created":"2026-01-01T00:00:00Z","last_active":"2026-01-01T00:00:01Z","status":"expiring_soon","groups":[]}]}`,
	"GET /api/v1/topics/requests/buckets/alice__gpt-4o": `{"name":"alice__gpt-4o","user":"alice","model":"gpt-4o","level":1,"queued":12,"bytes":6144,
		"head":3,"tail":15,"created":"2026-01-02T03:04:05Z","last_active":"2026-01-02T03:05:06.789Z","status":"active",
		"groups":[{"group":"pool","floor":3,"queued":11,"leased":1,"returned":0,
		   "suspend":{"scope":"bucket","name":"alice__gpt-4o","until":"2026-01-02T04:00:00Z","by":"operator","reason":"maintenance"}}]}`,
	"GET /api/v1/topics/requests/buckets/orders": `{"name":"orders","level":1,"queued":0,"bytes":0,"head":7,"tail":7,
		"created":"2026-01-01T00:00:00Z","last_active":"2026-01-01T00:00:01Z","status":"expiring_soon","groups":[]}`,
	"POST /api/v1/topics/requests/buckets/orders/purge": `{"purged":3}`,
	"GET /api/v1/groups/pool/suspends": `{"suspends":[
		{"scope":"bucket","name":"alice__gpt-4o","until":"2026-01-02T04:00:00Z","by":"operator","reason":"maintenance"},
		{"scope":"column","name":"gpt-4o","until":"2026-01-02T05:00:00.5Z"}]}`,
	"PUT /api/v1/groups/pool/suspends":    `{"scope":"bucket","name":"orders","until":"2026-01-02T04:00:00Z","by":"operator"}`,
	"DELETE /api/v1/groups/pool/suspends": `{"lifted":true}`,
	"GET /api/v1/groups/pool/dead-letters": `{"dead_letters":[{"sequence":1,"topic":"requests","bucket":"orders","offset":4,"message_id":"0A1B",
		"attempts":17,"reason":"attempts used up","at":"2026-01-02T03:00:00Z","body_bytes":512}]}`,
	"POST /api/v1/groups/pool/dead-letters/redrive": `{"redriven":1}`,
	"GET /api/v1/policy":                            `{"source":"policy.yaml","document":"version: 1\nlimits:\n  - {user: alice, model: gpt-4o, rate: 5/s, burst: 200ms}\n","limits":[{"user":"alice","model":"gpt-4o","rate":"5/s","burst":"200ms"},{"user":"*","model":"*","window":"100/1m","window_at":"admission","depth":"1000"}]}`,
	"PUT /api/v1/policy":                            `{"revision":4,"at":"2026-01-02T03:04:05Z","author":"operator"}`,
	"POST /api/v1/policy/rollback":                  `{"revision":5,"at":"2026-01-02T03:04:05Z","author":"bob","from":2}`,
	"GET /api/v1/policy/versions":                   `{"versions":[{"revision":5,"at":"2026-01-02T03:04:05Z","author":"bob","comment":"too fast","from":2},{"revision":4,"at":"2026-01-02T03:00:00Z","author":"operator"}]}`,
	"GET /api/v1/policy/versions/2":                 `{"revision":2,"at":"2026-01-01T00:00:00Z","author":"alice","comment":"first\nand last","text":"version: 1\nlimits: [{user: alice, model: gpt-4o, rate: 1/s}]\n"}`,
	"POST /api/v1/policy/check": `{"changes":[{"section":"limits","name":"user \"alice\"","op":"added","new":"rate 3/s"}],
		"effects":[{"section":"limits","name":"user \"alice\" model \"*\"","limit":"rate","old":"unlimited","old_from":"none","new":"3/s","new_from":"user"}]}`,
	"GET /api/v1/policy/explain": `{"user":"alice","model":"gpt-4o","level":1,"level_from":"default","considered":[
		{"section":"limits","limit":"rate","value":"5/s","from":"user+model","steps":[
			{"level":"user+model","rule":"user \"alice\" model \"gpt-4o\"","line":3,"value":"5/s","won":true,"why":"the most specific rule with a rate"},
			{"level":"user","rule":"user \"alice\"","line":4,"value":"9/s","why":"a more specific rule won"}]},
		{"section":"limits","limit":"tokens","value":"unlimited","from":"none","steps":[]}]}`,
	"GET /api/v1/explain": `{"topic":"requests","group":"pool","bucket":"alice__gpt-4o","user":"alice","model":"gpt-4o","level":1,"request_id":"r1","offset":7,"policy_notice":"a kept copy is in force",
		"state":"limited","position":0,"gate":{"scope":"bucket","name":"alice__gpt-4o","limit":"rate"},"since":"2026-01-02T03:04:05Z","until":"2026-01-02T03:04:06Z",
		"opens":"the rate opens","estimated_start":"2026-01-02T03:04:06Z","limits":[
		{"scope":"bucket","name":"alice__gpt-4o","limit":"rate","value":"1/s","used":1,"max":1,"open":false,"opens":"2026-01-02T03:04:06Z","from":"user+model"},
		{"scope":"column","name":"gpt-4o","limit":"in_flight","value":"8","used":3,"max":4,"open":true,"factor_permille":500,"stale":true,"from":"column"},
		{"scope":"row","name":"alice","limit":"rate","value":"2/s","used":1,"max":1,"open":true,"shadow":true,"would_hold":12,"from":"row"}]}`,
	"GET /api/v1/record": `{"time":"2026-01-02T03:04:05Z","user":"alice","model":"m","service_time":"300ms"}` + "\n",
}

// files are what the commands may read.
var files = map[string]string{
	"policy.yaml": "version: 1\nlimits:\n  - {user: alice, rate: 3/s}\n",
	"bad.yaml":    "version: 1\nlimits:\n  - {user: alice, rat: 3/s}\n",
	"trace.jsonl": `{"time": 0, "user": "alice", "model": "m", "service_time": "100ms"}` + "\n" +
		`{"time": 0, "user": "alice", "model": "m", "service_time": "100ms"}` + "\n",
}

func answer(w http.ResponseWriter, r *http.Request) (string, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	text, ok := canned[r.Method+" "+r.URL.Path]
	if r.URL.Path == "/api/v1/policy" && r.URL.RawQuery != "" {
		text = `{"user":"alice","model":"gpt-4o","limits":[{"limit":"rate","value":"5/s","from":"user+model","line":3},{"limit":"depth","value":"unlimited","from":"none"}]}`
	}
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		text = `{"error":{"code":"bucket_not_found","message":"bucket not found: \"none\" under \"requests\""}}`
	}
	_, err = io.WriteString(w, text)
	return fmt.Sprintf("> %s %s %s", r.Method, r.URL.RequestURI(), body), err
}

// TestCommands runs the commands in testdata/cli against canned answers. Each shows
// the requests it makes (>), what it prints, and its exit code unless that is 0.
func TestCommands(t *testing.T) {
	golden, err := filepath.Abs("testdata/cli")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir()) // away from a penstock.yaml
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var requests []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		line, err := answer(w, r)
		if err != nil {
			t.Error(err)
		}
		requests = append(requests, strings.TrimSpace(line))
	}))
	defer server.Close()
	addr := strings.TrimPrefix(server.URL, "http://")
	datadriven.RunTest(t, golden, func(_ *testing.T, d *datadriven.TestData) string {
		requests = nil
		var out, errOut bytes.Buffer
		args := strings.Fields(d.Input)
		code := run(args, []string{"PENSTOCK_ADMIN=" + addr}, strings.NewReader(""), &out, &errOut)
		var b strings.Builder
		for _, r := range requests {
			fmt.Fprintln(&b, r)
		}
		b.WriteString(out.String())
		for line := range strings.Lines(errOut.String()) {
			fmt.Fprintf(&b, "! %s", line)
		}
		if code != exitOK {
			fmt.Fprintf(&b, "exit code %d\n", code)
		}
		// Columns are padded; the end of a line is not.
		lines := strings.Split(strings.ReplaceAll(b.String(), addr, "ADMIN"), "\n")
		for i := range lines {
			lines[i] = strings.TrimRight(lines[i], " ")
		}
		return strings.Join(lines, "\n")
	})
}
