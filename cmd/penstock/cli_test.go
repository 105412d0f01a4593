package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
	"GET /api/v1/policy":                            `{"source":"policy.yaml","limits":[{"user":"alice","model":"gpt-4o","rate":"5/s","burst":"200ms"},{"user":"*","model":"*","window":"100/1m","window_at":"admission","depth":"1000"}]}`,
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
