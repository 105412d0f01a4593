package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/suspend/live"
	"github.com/penstockmq/penstock/suspend/policy"
)

// policyMemory is a store of policies without NATS. It is used by one request at a time.
type policyMemory struct{ versions []live.Version }

func (m *policyMemory) Version() live.Version {
	if len(m.versions) == 0 {
		return live.Version{Document: policy.Empty()}
	}
	return m.versions[len(m.versions)-1]
}

func (m *policyMemory) Apply(_ context.Context, c live.Change) (live.Version, error) {
	doc, err := policy.Parse(c.Text)
	if err != nil {
		return live.Version{}, err
	}
	if c.Expect != 0 && c.Expect != m.Version().Revision {
		return live.Version{}, live.ErrConflict
	}
	if c.Author == "" {
		return live.Version{}, fmt.Errorf("%w: author is empty", live.ErrField)
	}
	v := live.Version{
		Revision: uint64(len(m.versions) + 1), At: time.Unix(int64(len(m.versions)), 0), Author: c.Author, Comment: c.Comment,
		Text: c.Text, Document: doc,
	}
	m.versions = append(m.versions, v)
	return v, nil
}

func (m *policyMemory) History(_ context.Context, limit int) ([]live.Version, error) {
	var out []live.Version
	for i := len(m.versions) - 1; i >= 0 && len(out) < limit; i-- {
		out = append(out, m.versions[i])
	}
	return out, nil
}

func (m *policyMemory) Get(_ context.Context, revision uint64) (live.Version, error) {
	if revision == 0 || revision > uint64(len(m.versions)) {
		return live.Version{}, live.ErrNoVersion
	}
	return m.versions[revision-1], nil
}

func (m *policyMemory) Rollback(ctx context.Context, revision uint64, author, comment string) (live.Version, error) {
	old, err := m.Get(ctx, revision)
	if err != nil {
		return live.Version{}, err
	}
	v, err := m.Apply(ctx, live.Change{Text: old.Text, Author: author, Comment: comment})
	if err == nil {
		m.versions[len(m.versions)-1].From = revision
		v.From = revision
	}
	return v, err
}

// newPolicyFixture is a server without a broker, over a store of policies.
func newPolicyFixture(t *testing.T, source *admin.PolicySource) *fixture {
	t.Helper()
	f := &fixture{t: t, http: httptest.NewServer(admin.New(admin.Options{Registry: admin.NewRegistry("v1"), Policy: source}))}
	t.Cleanup(f.http.Close)
	return f
}

func liveSource() *admin.PolicySource {
	m := &policyMemory{}
	return &admin.PolicySource{Current: func() *policy.Document { return m.Version().Document }, Live: m}
}

const onePerSecond = `version: 1\nlimits: [{user: alice, model: m, rate: 1/s}]\n`

func TestPoliciesAreAppliedWithTheirHistory(t *testing.T) {
	f := newPolicyFixture(t, liveSource())
	var p admin.Policy
	f.want(http.StatusOK, "GET", "/api/v1/policy", "", &p)
	if p.Version != nil || len(p.Limits) != 0 {
		t.Errorf("before the first policy: %+v", p)
	}
	var v admin.PolicyVersion
	f.want(http.StatusOK, "PUT", "/api/v1/policy", `{"text":"`+onePerSecond+`","author":"bob","comment":"slow"}`, &v)
	if v.Revision != 1 || v.Author != "bob" {
		t.Errorf("applied as %+v", v)
	}
	f.want(http.StatusOK, "PUT", "/api/v1/policy", `{"text":"version: 1\n","author":"eve","expect":1}`, &v)
	f.want(http.StatusOK, "GET", "/api/v1/policy", "", &p)
	if p.Version == nil || p.Version.Revision != 2 || p.Version.Text != "version: 1\n" || len(p.Limits) != 0 {
		t.Errorf("in force: %+v", p)
	}
	f.want(http.StatusOK, "POST", "/api/v1/policy/rollback", `{"revision":1,"author":"bob"}`, &v)
	if v.Revision != 3 || v.From != 1 {
		t.Errorf("rolled back as %+v", v)
	}
	var list admin.PolicyVersions
	f.want(http.StatusOK, "GET", "/api/v1/policy/versions?limit=2", "", &list)
	if len(list.Versions) != 2 || list.Versions[0].Revision != 3 || list.Versions[1].Revision != 2 || list.Versions[0].Text != "" {
		t.Errorf("history: %+v", list)
	}
	f.want(http.StatusOK, "GET", "/api/v1/policy/versions/1", "", &v)
	if v.Comment != "slow" || !strings.Contains(v.Text, "rate: 1/s") {
		t.Errorf("version 1: %+v", v)
	}
}

func TestRefusedPolicies(t *testing.T) {
	following := &admin.PolicySource{Path: "policy.yaml", Current: policy.Empty}
	for _, c := range []struct {
		name, method, path, body string
		source                   *admin.PolicySource
		status                   int
		code, field              string
	}{
		{"invalid", "PUT", "/api/v1/policy", `{"text":"version: 1\nlimits: [{user: a, rat: 1/s}]","author":"b"}`, liveSource(), 400, "invalid_policy", ""},
		{"no author", "PUT", "/api/v1/policy", `{"text":"version: 1"}`, liveSource(), 400, "invalid_change", ""},
		{"conflict", "PUT", "/api/v1/policy", `{"text":"version: 1","author":"b","expect":7}`, liveSource(), 409, "policy_conflict", ""},
		{"unknown field", "PUT", "/api/v1/policy", `{"txt":"version: 1"}`, liveSource(), 400, "invalid_body", "txt"},
		{"follows a file", "PUT", "/api/v1/policy", `{"text":"version: 1","author":"b"}`, following, 409, "policy_follows_file", ""},
		{"follows a file", "GET", "/api/v1/policy/versions", "", following, 409, "policy_follows_file", ""},
		{"no store", "POST", "/api/v1/policy/rollback", `{"revision":1,"author":"b"}`, &admin.PolicySource{Current: policy.Empty}, 404, "no_policy_store", ""},
		{"no policy", "POST", "/api/v1/policy/check", `{"text":"version: 1"}`, nil, 404, "no_policy", ""},
		{"no version", "GET", "/api/v1/policy/versions/9", "", liveSource(), 404, "version_not_found", ""},
		{"no revision", "GET", "/api/v1/policy/versions/first", "", liveSource(), 400, "invalid_parameter", "revision"},
		{"nothing to roll back to", "POST", "/api/v1/policy/rollback", `{"revision":1,"author":"b"}`, liveSource(), 404, "version_not_found", ""},
		{"check invalid", "POST", "/api/v1/policy/check", `{"text":"limits: []"}`, liveSource(), 400, "invalid_policy", "text"},
	} {
		f := newPolicyFixture(t, c.source)
		status, text := f.do(c.method, c.path, c.body)
		var body struct {
			Error struct{ Code, Message, Field string }
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil {
			t.Fatalf("%s: %v in %s", c.name, err, text)
		}
		if status != c.status || body.Error.Code != c.code || body.Error.Field != c.field {
			t.Errorf("%s: %d %s, want %d %s of field %q", c.name, status, text, c.status, c.code, c.field)
		}
	}
}

func TestPolicyCheckTellsWhatChanges(t *testing.T) {
	f := newPolicyFixture(t, liveSource())
	f.want(http.StatusOK, "PUT", "/api/v1/policy", `{"text":"`+onePerSecond+`","author":"bob"}`, nil)
	var got admin.PolicyCheck
	f.want(http.StatusOK, "POST", "/api/v1/policy/check", `{"text":"version: 1\nlimits: [{user: alice, model: m, rate: 2/s}]"}`, &got)
	if len(got.Changes) != 1 || got.Changes[0].Op != policy.Changed || len(got.Effects) != 1 || got.Effects[0].New != "2/s" {
		t.Errorf("check: %+v", got)
	}
	var cell admin.CellPolicy
	f.want(http.StatusOK, "GET", "/api/v1/policy/explain?user=alice&model=m", "", &cell)
	if len(cell.Considered) == 0 || cell.Considered[0].Value != "1/s" || cell.Level != 1 {
		t.Errorf("explained: %+v", cell)
	}
	// Nothing was changed by asking.
	f.want(http.StatusOK, "GET", "/api/v1/policy/explain?user=alice&model=m", "", &cell)
	if cell.Considered[0].Value != "1/s" {
		t.Error("a check has put a policy in force")
	}
}

func TestExplainSaysWhyABucketWaits(t *testing.T) {
	f := newFixture(t)
	f.send("alice__m", 2)
	f.want(http.StatusOK, "PUT", "/api/v1/groups/pool/suspends", `{"scope":"column","name":"m","duration":"1h","reason":"maintenance","by":"ops"}`, nil)
	var e admin.Explanation
	f.want(http.StatusOK, "GET", "/api/v1/explain?topic=requests&group=pool&bucket=alice__m", "", &e)
	if e.State != "held" || e.Suspend == nil || e.Suspend.Scope != "column" || e.Suspend.By != "ops" || e.Suspend.Reason != "maintenance" || e.Position != 0 {
		t.Errorf("explained as %+v, suspend %+v", e, e.Suspend)
	}
	for path, want := range map[string]int{
		"?topic=requests&group=pool":                             http.StatusBadRequest,
		"?topic=requests&group=pool&bucket=alice__m&request=r":   http.StatusBadRequest,
		"?topic=requests&group=pool&request=none":                http.StatusNotFound,
		"?topic=requests&group=pool&bucket=none":                 http.StatusNotFound,
		"?topic=none&group=pool&bucket=alice__m":                 http.StatusNotFound,
		"?topic=requests&group=none&bucket=alice__m":             http.StatusNotFound,
		"?topic=requests&group=pool&bucket=alice__m&verbose=yes": http.StatusBadRequest,
	} {
		if code, text := f.do("GET", "/api/v1/explain"+path, ""); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, text, want)
		}
	}
}

func TestRecordStreamsWhatIsDone(t *testing.T) {
	var recorder admin.Recorder
	f := newFixture(t)
	f.http.Config.Handler = admin.New(admin.Options{Broker: f.broker, Registry: admin.NewRegistry("v1"), Recorder: &recorder})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.http.URL+"/api/v1/record?topic=requests&for=1m", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	stored := time.Unix(1000, 0)
	done := broker.Released{
		Topic: "requests", Stored: stored, At: stored.Add(time.Second), Ended: stored.Add(3 * time.Second), Settled: true, Level: -1,
	}
	done.Cell.User, done.Cell.Model = "alice", "m"
	running, returned, elsewhere := done, done, done
	running.Ended, returned.Settled, elsewhere.Topic = time.Time{}, false, "other"
	for _, x := range []broker.Released{running, returned, elsewhere, done} {
		recorder.Released(x)
	}
	line, err := bufio.NewReader(answer.Body).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"time":"1970-01-01T00:16:40Z","user":"alice","model":"m","cost":1,"service_time":"2s"}` + "\n"; line != want {
		t.Errorf("recorded %s, want %s", line, want)
	}
	for _, path := range []string{"?topic=requests", "?topic=requests&for=-1s", "?topic=requests&for=25h"} {
		if code, text := f.do("GET", "/api/v1/record"+path, ""); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
}

// crowded counts how many changes are applied at once.
type crowded struct {
	policyMemory
	inside, most atomic.Int64
}

func (c *crowded) Apply(_ context.Context, change live.Change) (live.Version, error) {
	n := c.inside.Add(1)
	defer c.inside.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
		continue
	}
	doc, err := policy.Parse(change.Text)
	return live.Version{Document: doc}, err
}

func TestPoliciesAreReadOneAtATime(t *testing.T) {
	store := &crowded{}
	f := newPolicyFixture(t, &admin.PolicySource{Current: policy.Empty, Live: store})
	var rules strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&rules, `\n  - {user: u%d, model: m, rate: 1/s}`, i)
	}
	body := `{"author":"x","text":"version: 1\nlimits:` + rules.String() + `"}`
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if status, answer := f.do("PUT", "/api/v1/policy", body); status != http.StatusOK {
				t.Errorf("%d %s", status, answer)
			}
		})
	}
	wait.Wait()
	if n := store.most.Load(); n != 1 {
		t.Errorf("%d policies were read at once", n)
	}
}
