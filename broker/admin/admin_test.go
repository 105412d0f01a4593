package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/suspend/policy"
)

// fixture is a server over a broker in memory, with a parent topic and a group.
type fixture struct {
	t      *testing.T
	broker *broker.Broker
	http   *httptest.Server
}

const testPolicy = `version: 1
limits:
  - {user: alice, model: m, rate: 5/s}
  - {user: "*", model: "*", rate: 1/s, depth: 10}
`

func newFixture(t *testing.T) *fixture {
	t.Helper()
	registry := admin.NewRegistry("v1.2.3")
	b, err := broker.Open(broker.Options{Dir: "store", FS: vfs.NewMem(), Observer: admin.NewObserver(registry)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	admin.RegisterBroker(registry, b)
	doc, err := policy.Parse([]byte(testPolicy))
	if err != nil {
		t.Fatal(err)
	}
	s := admin.New(admin.Options{
		Broker: b, Registry: registry,
		Policy: &admin.PolicySource{Path: "policy.yaml", Current: func() *policy.Document { return doc }},
	})
	f := &fixture{t: t, broker: b, http: httptest.NewServer(s)}
	t.Cleanup(f.http.Close)
	f.want(http.StatusCreated, "POST", "/api/v1/topics", `{"name":"requests","ttl":"1h"}`, nil)
	f.want(http.StatusCreated, "POST", "/api/v1/groups", `{"name":"pool","topic":"requests","wildcard":true,"max_attempts":1}`, nil)
	return f
}

// do sends a request and returns status and body; headers are "Name: value".
func (f *fixture) do(method, path, body string, headers ...string) (int, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.http.URL+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		}
		r.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

// want does a request, expects a status and decodes the body into v unless v is nil.
func (f *fixture) want(status int, method, path, body string, v any) {
	f.t.Helper()
	code, text := f.do(method, path, body)
	if code != status {
		f.t.Fatalf("%s %s is %d %s, want %d", method, path, code, text, status)
	}
	if v != nil {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			f.t.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
	}
}

func (f *fixture) send(bucket string, n int) {
	f.t.Helper()
	for i := range n {
		_, err := f.broker.Send(f.t.Context(), "requests", []broker.Message{{
			Lite: bucket, ID: fmt.Sprintf("%s-%d", bucket, i), Body: []byte("hello"), Born: time.Now(),
		}})
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

func TestTopicsAndGroups(t *testing.T) {
	f := newFixture(t)
	var topic admin.Topic
	f.want(http.StatusOK, "GET", "/api/v1/topics/requests", "", &topic)
	if topic.Name != "requests" || time.Duration(topic.TTL) != time.Hour || topic.MaxMessages == 0 {
		t.Errorf("topic is %+v", topic)
	}
	var group admin.Group
	f.want(http.StatusOK, "GET", "/api/v1/groups/pool", "", &group)
	if group.Topic != "requests" || !group.Wildcard || group.MaxAttempts != 1 || group.InFlight != 1 {
		t.Errorf("group is %+v", group)
	}
	var made admin.GroupStatus
	f.want(http.StatusCreated, "POST", "/api/v1/groups", `{"name":"brief","topic":"requests","retention":"2h"}`, &made)
	if time.Duration(made.Retention) != 2*time.Hour || made.Auto || made.Clients != 0 {
		t.Errorf("group is %+v, want an operator's with a retention of 2 h", made)
	}
	f.want(http.StatusBadRequest, "POST", "/api/v1/groups", `{"name":"hasty","topic":"requests","retention":"2s"}`, nil)
	f.want(http.StatusOK, "DELETE", "/api/v1/groups/brief", "", nil)
	f.want(http.StatusCreated, "POST", "/api/v1/topics", `{"name":"another"}`, nil)
	var topics admin.Topics
	f.want(http.StatusOK, "GET", "/api/v1/topics", "", &topics)
	if len(topics.Topics) != 2 || topics.Topics[0].Name != "another" {
		t.Errorf("topics are %+v", topics)
	}
	f.want(http.StatusOK, "DELETE", "/api/v1/topics/another", "", nil)
	f.want(http.StatusConflict, "DELETE", "/api/v1/topics/requests", "", nil)
	f.want(http.StatusOK, "DELETE", "/api/v1/groups/pool", "", nil)
	f.want(http.StatusOK, "DELETE", "/api/v1/topics/requests", "", nil)
	var groups admin.Groups
	f.want(http.StatusOK, "GET", "/api/v1/groups", "", &groups)
	if len(groups.Groups) != 0 {
		t.Errorf("groups are %+v", groups)
	}
}

func TestBucketsPageByPage(t *testing.T) {
	f := newFixture(t)
	want := []string{"a-1", "a-2", "a-3", "b-1", "b-2"}
	for i, name := range want {
		f.send(name, i+1)
	}
	var got []string
	var queued []int
	for after := ""; ; {
		var page admin.Buckets
		f.want(http.StatusOK, "GET", "/api/v1/topics/requests/buckets?limit=2&after="+after, "", &page)
		if len(page.Buckets) > 2 {
			t.Fatalf("a page has %d buckets", len(page.Buckets))
		}
		for _, b := range page.Buckets {
			got, queued = append(got, b.Name), append(queued, b.Queued)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") || fmt.Sprint(queued) != "[1 2 3 4 5]" {
		t.Errorf("buckets are %v with %v queued", got, queued)
	}
	var page admin.Buckets
	f.want(http.StatusOK, "GET", "/api/v1/topics/requests/buckets?prefix=b-", "", &page)
	if len(page.Buckets) != 2 || page.Next != "" {
		t.Errorf("with a prefix: %+v", page)
	}
}

func TestPurgeSettlesWhatIsQueued(t *testing.T) {
	f := newFixture(t)
	f.send("x", 3)
	var purged admin.Purged
	f.want(http.StatusOK, "POST", "/api/v1/topics/requests/buckets/x/purge", "", &purged)
	if purged.Purged != 3 {
		t.Errorf("%d purged, want 3", purged.Purged)
	}
	var b admin.Bucket
	f.want(http.StatusOK, "GET", "/api/v1/topics/requests/buckets/x", "", &b)
	if b.Queued != 0 {
		t.Errorf("%d are queued after a purge", b.Queued)
	}
}

func TestSuspends(t *testing.T) {
	f := newFixture(t)
	const path = "/api/v1/groups/pool/suspends"
	f.send("x", 1)
	var set admin.Suspend
	f.want(http.StatusOK, "PUT", path, `{"scope":"bucket","name":"x","duration":"1h","reason":"maintenance"}`, &set)
	if left := time.Until(set.Until); left < 59*time.Minute || left > time.Hour || set.By != "operator" {
		t.Errorf("set as %+v", set)
	}
	f.want(http.StatusOK, "PUT", path, `{"scope":"column","name":"gpt-4o","duration":"10m"}`, nil)
	// An operator's hold is exact: it may become shorter.
	f.want(http.StatusOK, "PUT", path, `{"scope":"bucket","name":"x","duration":"5m"}`, nil)

	var list admin.Suspends
	f.want(http.StatusOK, "GET", path, "", &list)
	if len(list.Suspends) != 2 || list.Suspends[0].Name != "x" || list.Suspends[1].Scope != "column" {
		t.Errorf("suspends are %+v", list)
	}
	f.want(http.StatusOK, "GET", path+"?scope=column", "", &list)
	if len(list.Suspends) != 1 || list.Suspends[0].Name != "gpt-4o" {
		t.Errorf("suspends of columns are %+v", list)
	}
	f.want(http.StatusOK, "GET", path+"?limit=1", "", &list)
	if len(list.Suspends) != 1 || !list.Truncated {
		t.Errorf("one suspend is %+v", list)
	}
	var b admin.Bucket
	f.want(http.StatusOK, "GET", "/api/v1/topics/requests/buckets/x", "", &b)
	if len(b.Groups) != 1 || b.Groups[0].Suspend == nil || b.Groups[0].Suspend.Name != "x" {
		t.Errorf("the bucket is %+v", b)
	}
	for _, want := range []bool{true, false} {
		var lifted admin.Lifted
		f.want(http.StatusOK, "DELETE", path+"?scope=bucket&name=x", "", &lifted)
		if lifted.Lifted != want {
			t.Errorf("lifted is %v, want %v", lifted.Lifted, want)
		}
	}
}

func TestDeadLettersAreRedrivenOnce(t *testing.T) {
	f := newFixture(t)
	f.send("x", 3)
	receive := broker.ReceiveRequest{Topic: "requests", Group: "pool", Client: "c", Max: 1, Invisible: time.Minute, Wait: 10 * time.Second}
	err := f.broker.SyncSubscription(t.Context(), broker.SyncRequest{Topic: "requests", Group: "pool", Client: "c", Action: dispatch.CompleteAdd})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		got, err := f.broker.Receive(t.Context(), receive)
		if err != nil || len(got) != 1 {
			t.Fatalf("received %d messages, error %v", len(got), err)
		}
		if err := f.broker.DeadLetter(t.Context(), "requests", "pool", got[0].Handle, "test"); err != nil {
			t.Fatal(err)
		}
	}
	const path = "/api/v1/groups/pool/dead-letters"
	var page admin.DeadLetters
	f.want(http.StatusOK, "GET", path+"?limit=2", "", &page)
	if len(page.DeadLetters) != 2 || page.Next == 0 || page.DeadLetters[0].MessageID != "x-0" || page.DeadLetters[0].Bucket != "x" {
		t.Fatalf("first page is %+v", page)
	}
	first := page.DeadLetters[0].Sequence
	var last admin.DeadLetters
	f.want(http.StatusOK, "GET", fmt.Sprintf("%s?after=%d", path, page.Next), "", &last)
	if len(last.DeadLetters) != 1 || last.Next != 0 {
		t.Fatalf("second page is %+v", last)
	}
	for _, want := range []int{1, 0} {
		var got admin.Redriven
		f.want(http.StatusOK, "POST", path+"/redrive", fmt.Sprintf(`{"sequences":[%d]}`, first), &got)
		if got.Redriven != want {
			t.Errorf("%d redriven, want %d", got.Redriven, want)
		}
	}
	again, err := f.broker.Receive(t.Context(), receive)
	if err != nil || len(again) != 1 || again[0].ID != "x-0" || again[0].Attempt != 1 {
		t.Errorf("received %+v, error %v; want x-0 at its first attempt", again, err)
	}
}

func TestPolicy(t *testing.T) {
	f := newFixture(t)
	var p admin.Policy
	f.want(http.StatusOK, "GET", "/api/v1/policy", "", &p)
	if p.Source != "policy.yaml" || len(p.Limits) != 2 || p.Limits[0].Rate != "5/s" {
		t.Errorf("policy is %+v", p)
	}
	var c admin.Cell
	f.want(http.StatusOK, "GET", "/api/v1/policy?user=alice&model=m", "", &c)
	got := map[string]string{}
	for _, l := range c.Limits {
		got[l.Limit] = l.Value + " from " + l.From
	}
	if got["rate"] != "5/s from user+model" || got["depth"] != "10 from default user+default model" || got["window"] != "unlimited from none" {
		t.Errorf("limits of the cell are %v", got)
	}
}

func TestRefusals(t *testing.T) {
	f := newFixture(t)
	const holds = "/api/v1/groups/pool/suspends"
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code, field              string
	}{
		{"no route", "GET", "/api/v2/topics", "", 404, "route_not_found", ""},
		{"no method", "PUT", "/api/v1/topics", `{}`, 405, "method_not_allowed", ""},
		{"no topic", "GET", "/api/v1/topics/none", "", 404, "topic_not_found", ""},
		{"no topic for a group", "POST", "/api/v1/groups", `{"name":"g","topic":"none"}`, 404, "topic_not_found", ""},
		{"no group", "GET", "/api/v1/groups/none/suspends", "", 404, "group_not_found", ""},
		{"no bucket", "GET", "/api/v1/topics/requests/buckets/none", "", 404, "bucket_not_found", ""},
		{"bucket name", "GET", "/api/v1/topics/requests/buckets/a.b", "", 400, "invalid_bucket", ""},
		{"topic twice", "POST", "/api/v1/topics", `{"name":"requests"}`, 409, "already_exists", ""},
		{"topic name", "POST", "/api/v1/topics", `{"name":"a b"}`, 400, "invalid_topic", ""},
		{"topic bound", "POST", "/api/v1/topics", `{"name":"t","max_messages":-1}`, 400, "invalid_argument", ""},
		{"unknown field", "POST", "/api/v1/topics", `{"name":"t","tll":"1h"}`, 400, "invalid_body", "tll"},
		{"wrong type", "POST", "/api/v1/topics", `{"name":7}`, 400, "invalid_body", "name"},
		{"bad duration", "POST", "/api/v1/topics", `{"name":"t","ttl":"1 hour"}`, 400, "invalid_body", ""},
		{"two objects", "POST", "/api/v1/topics", `{"name":"t"}{}`, 400, "invalid_body", ""},
		{"no JSON", "POST", "/api/v1/topics", `name=t`, 400, "invalid_body", ""},
		{"unknown parameter", "GET", "/api/v1/topics/requests/buckets?prefx=a", "", 400, "invalid_parameter", "prefx"},
		{"parameter twice", "GET", "/api/v1/topics/requests/buckets?limit=1&limit=2", "", 400, "invalid_parameter", "limit"},
		{"page of none", "GET", "/api/v1/topics/requests/buckets?limit=0", "", 400, "invalid_parameter", "limit"},
		{"body too large", "POST", "/api/v1/topics", `{"name": "` + strings.Repeat("a", 1<<20) + `"}`, 413, "body_too_large", ""},
		{"page too large", "GET", "/api/v1/topics/requests/buckets?limit=1001", "", 400, "invalid_parameter", "limit"},
		{"sequence", "GET", "/api/v1/groups/pool/dead-letters?after=-1", "", 400, "invalid_parameter", "after"},
		{"redrive of none", "POST", "/api/v1/groups/pool/dead-letters/redrive", `{}`, 400, "invalid_body", "sequences"},
		{"scope", "PUT", holds, `{"scope":"cell","name":"x","duration":"1s"}`, 400, "invalid_scope", "scope"},
		{"target", "PUT", holds, `{"scope":"level","name":"9","duration":"1s"}`, 400, "invalid_target", "name"},
		{"reason of 900 KB", "PUT", holds, `{"scope":"bucket","name":"x","duration":"1m","reason":"` + strings.Repeat("a", 900_000) + `"}`, 400, "invalid_body", "reason"},
		{"reason with an escape sequence", "PUT", holds, `{"scope":"bucket","name":"x","duration":"1m","reason":"\u001b[2J"}`, 400, "invalid_body", "reason"},
		{"reason with a line break", "PUT", holds, `{"scope":"bucket","name":"x","duration":"1m","reason":"a\nb"}`, 400, "invalid_body", "reason"},
		{"by of 256 bytes", "PUT", holds, `{"scope":"bucket","name":"x","duration":"1m","by":"` + strings.Repeat("a", 256) + `"}`, 400, "invalid_body", "by"},
		{"by with a control character", "PUT", holds, `{"scope":"bucket","name":"x","duration":"1m","by":"\u009b"}`, 400, "invalid_body", "by"},
		{"no time", "PUT", holds, `{"scope":"bucket","name":"x"}`, 400, "invalid_body", "duration"},
		{"negative", "PUT", holds, `{"scope":"bucket","name":"x","duration":"-1s"}`, 400, "invalid_duration", "duration"},
		{"too long", "PUT", holds, `{"scope":"bucket","name":"x","duration":"25h"}`, 400, "invalid_duration", ""},
		{"lift without scope", "DELETE", holds, "", 400, "invalid_scope", "scope"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, text := f.do(c.method, c.path, c.body)
			var got struct {
				Error struct{ Code, Message, Field string }
			}
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatalf("%v in %s", err, text)
			}
			if code != c.status || got.Error.Code != c.code || got.Error.Field != c.field || got.Error.Message == "" {
				t.Errorf("%d %s, want %d %s with field %q", code, text, c.status, c.code, c.field)
			}
		})
	}
	var list admin.Suspends
	f.want(http.StatusOK, "GET", holds, "", &list)
	if len(list.Suspends) != 0 {
		t.Errorf("a refused suspend left %+v", list)
	}
}

// An operator's browser must not carry out what a web page wants.
func TestForeignPagesAreRefused(t *testing.T) {
	f := newFixture(t)
	const body = `{"name":"t"}`
	for _, c := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"another site", []string{"Sec-Fetch-Site: cross-site"}, http.StatusForbidden},
		{"another origin, older browser", []string{"Origin: https://evil.example"}, http.StatusForbidden},
		{"rebound name", []string{"Host: evil.example:80"}, http.StatusForbidden},
		{"a form", []string{"Content-Type: text/plain"}, http.StatusUnsupportedMediaType},
		{"the command line", nil, http.StatusCreated},
		{"localhost", []string{"Host: localhost:8082"}, http.StatusConflict},
		{"IPv6", []string{"Host: [::1]:8082"}, http.StatusConflict},
	} {
		if code, text := f.do("POST", "/api/v1/topics", body, c.headers...); code != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, code, text, c.status)
		}
	}
}

// TestAReboundNameIsRefusedOnEveryAddress: an attacker's name that points at a host of the
// operator's network has the same origin as the attacker's page, so only the name differs.
func TestAReboundNameIsRefusedOnEveryAddress(t *testing.T) {
	server := admin.New(admin.Options{Registry: admin.NewRegistry("v1"), Hosts: []string{"ops.example"}})
	const chrome = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"
	for _, c := range []struct {
		name, method, host string
		headers            []string
		want               int
	}{
		{"a page that reads", "GET", "evil.example:8082", []string{chrome}, http.StatusForbidden},
		{"a page that writes", "POST", "evil.example:8082", []string{"Origin: http://evil.example:8082"}, http.StatusForbidden},
		{"a page that hides its browser", "GET", "evil.example:8082", []string{"Sec-Fetch-Site: same-origin"}, http.StatusForbidden},
		{"the operator, by address", "GET", "10.0.0.1:8082", []string{chrome}, http.StatusOK},
		{"the operator, by a configured name", "GET", "OPS.example:8082", []string{chrome}, http.StatusOK},
		{"monitoring, by name", "GET", "broker.svc.cluster.local:8082", []string{"User-Agent: Prometheus/3.0"}, http.StatusOK},
		{"the command line, by name", "GET", "broker:8082", nil, http.StatusOK},
	} {
		r := httptest.NewRequest(c.method, "/healthz", nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 8082}))
		r.Host = c.host
		for _, h := range c.headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		server.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, w.Code, w.Body, c.want)
		}
	}
}

func TestMetricsNameNoUserOrBucket(t *testing.T) {
	f := newFixture(t)
	f.send("alice__gpt-4o", 2)
	code, text := f.do("GET", "/metrics", "")
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	for _, want := range []string{
		"penstock_broker_sends_total 2", `penstock_broker_buckets{topic="requests"} 1`, `penstock_broker_messages{topic="requests"} 2`,
		`penstock_broker_buckets_ready{group="pool",topic="requests"} 1`, `penstock_broker_buckets_parked{group="pool",topic="requests"} 0`,
		`penstock_broker_leases{group="pool",topic="requests"} 0`, "penstock_broker_redeliveries_total 0", "penstock_broker_dead_letters_total 0",
		"penstock_store_commit_seconds_count", "penstock_broker_turn_seconds_count", "penstock_store_log_syncs_total", `penstock_build_info{go_version="`, `version="v1.2.3"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	for _, bad := range []string{"alice", "gpt-4o"} {
		if strings.Contains(text, bad) {
			t.Errorf("%s is in the metrics", bad)
		}
	}
}
