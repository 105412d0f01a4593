package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/live"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

const alarmPolicy = `version: 1
columns: [{model: "*", rate: 100/s}]
levels: [{level: 3, rate: 10/s}]
alarms:
  - {name: busy, match: {alertname: Busy}, column_label: model, factor: 0.3, for: 10m, hold_down: 30s}
  - {name: region, match: {severity: page}, level: 3, factor: 0, for: 1m, hold_down: 0s}
`

// signalMemory is a store of signals without NATS.
type signalMemory struct {
	mu  sync.Mutex
	all []signal.Signal
	err error
}

func (m *signalMemory) Publish(ctx context.Context, s signal.Signal) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := m.Clear(ctx, s.Target, s.Source); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, s)
	return nil
}

func (m *signalMemory) Clear(_ context.Context, target suspend.Target, source string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.all = slices.DeleteFunc(m.all, func(s signal.Signal) bool { return s.Target == target && s.Source == source })
	return nil
}

func (m *signalMemory) All() []signal.Signal {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

func (m *signalMemory) Displaced() int64 { return 0 }

// alarmFixture is a server that takes alarms and has no broker.
type alarmFixture struct {
	fixture
	store *signalMemory
}

func newAlarmFixture(t *testing.T, change func(*admin.Options)) *alarmFixture {
	t.Helper()
	doc, err := policy.Parse([]byte(alarmPolicy))
	if err != nil {
		t.Fatal(err)
	}
	store := &signalMemory{}
	registry := admin.NewRegistry("v1")
	admin.RegisterSignals(registry, store)
	opts := admin.Options{
		Registry: registry, Signals: store,
		Policy: &admin.PolicySource{Current: func() *policy.Document { return doc }},
	}
	if change != nil {
		change(&opts)
	}
	server := httptest.NewServer(admin.New(opts))
	t.Cleanup(server.Close)
	return &alarmFixture{fixture: fixture{t: t, http: server}, store: store}
}

// alert is one of Alertmanager's, as JSON.
func alert(status, fingerprint string, ends time.Time, labels ...string) string {
	own := map[string]string{}
	for i := 0; i < len(labels); i += 2 {
		own[labels[i]] = labels[i+1]
	}
	b, err := json.Marshal(map[string]any{
		"status": status, "fingerprint": fingerprint, "labels": own, "annotations": map[string]string{"summary": "why"},
		"startsAt": ends.Add(-time.Minute), "endsAt": ends,
	})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func webhook(alerts ...string) string {
	return `{"version":"4","status":"firing","receiver":"penstock","alerts":[` + strings.Join(alerts, ",") + `]}`
}

// report posts and wants 200.
func (f *alarmFixture) report(body string) admin.AlarmReport {
	f.t.Helper()
	var report admin.AlarmReport
	f.want(http.StatusOK, "POST", "/v1/alarms", body, &report)
	return report
}

func TestAlertmanagerRaisesAndResolves(t *testing.T) {
	f := newAlarmFixture(t, nil)
	before := time.Now()
	got := f.report(webhook(
		alert("firing", "f1", time.Time{}, "alertname", "Busy", "model", "m1"),
		alert("firing", "f2", time.Time{}, "alertname", "Busy", "model", "m1", "severity", "page"),
		alert("firing", "f3", time.Time{}, "alertname", "Busy"),
		alert("firing", "f4", time.Time{}, "alertname", "Other"),
		alert("resolved", "f5", before, "alertname", "Busy", "model", "m1"),
	))
	if got != (admin.AlarmReport{Raised: 3, Ignored: 3}) {
		t.Errorf("%+v", got)
	}
	byKey := map[string]signal.Signal{}
	for _, s := range f.store.All() {
		byKey[s.Target.String()+" "+s.Source] = s
	}
	for key, want := range map[string]struct {
		permille int64
		lasts    time.Duration
	}{"column m1 busy/f1": {300, 10 * time.Minute}, "column m1 busy/f2": {300, 10 * time.Minute}, "level 3 region/f2": {0, time.Minute}} {
		s, ok := byKey[key]
		if !ok || s.Permille != want.permille || s.Until.Sub(s.At) != want.lasts || s.At.Before(before.Add(-time.Millisecond)) || s.Kind != signal.Alarm {
			t.Errorf("%s: %+v", key, s)
		}
	}
	// f2 ends: what has no hold-down is gone, the other stays for a while. Said twice, it stays no longer.
	ends := time.Now().Add(-10 * time.Second).Round(0)
	for range 2 {
		f.report(webhook(alert("resolved", "f2", ends, "alertname", "Busy", "model", "m1")))
	}
	all := f.store.All()
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	for _, s := range all {
		if s.Source == "busy/f2" && (s.Permille != 300 || !s.Until.Equal(ends.Add(30*time.Second))) {
			t.Errorf("held down: %+v", s)
		}
	}
	f.report(webhook(alert("resolved", "f1", time.Now().Add(-time.Minute), "alertname", "Busy", "model", "m1")))
	if all := f.store.All(); len(all) != 1 || all[0].Source != "busy/f2" {
		t.Errorf("%+v", all)
	}
}

// TestAlarmRefusals: what cannot succeed is 4xx, so that the sender does not repeat it; the rest is 5xx.
func TestAlarmRefusals(t *testing.T) {
	good := webhook(alert("firing", "f1", time.Time{}, "alertname", "Busy", "model", "m1"))
	for _, tc := range []struct {
		name    string
		change  func(*admin.Options)
		body    string
		headers []string
		status  int
		code    string
	}{
		{"no store", func(o *admin.Options) { o.Signals = nil }, good, nil, 404, "no_signals"},
		{"no policy", func(o *admin.Options) { o.Policy = nil }, good, nil, 404, "no_policy"},
		{"no JSON", nil, "{", nil, 400, "invalid_alarm"},
		{"status", nil, webhook(`{"status":"on","labels":{"a":"b"}}`), nil, 400, "alerts[0].status"},
		{"version", nil, `{"version":"3","alerts":[]}`, nil, 400, "version"},
		{"a form", nil, good, []string{"Content-Type: text/plain"}, 415, "invalid_media_type"},
		{"too large", nil, strings.Repeat(" ", signal.MaxAlertBytes) + good, nil, 413, "body_too_large"},
		{"NATS is away", func(o *admin.Options) { o.Signals = &signalMemory{err: live.ErrDisconnected} }, good, nil, 503, "nats_unavailable"},
		{"too many", func(o *admin.Options) { o.Signals = &signalMemory{err: live.ErrTooMany} }, good, nil, 503, "too_many_signals"},
		{"time-out", func(o *admin.Options) { o.Signals = &signalMemory{err: context.DeadlineExceeded} }, good, nil, 504, "timeout"},
		{"unknown", func(o *admin.Options) { o.Signals = &signalMemory{err: fmt.Errorf("boom")} }, good, nil, 500, "internal"},
		{"web page", nil, good, []string{"Origin: https://evil.example"}, 403, "foreign_origin"},
		{"other host", nil, good, []string{"Host: alarms.example"}, 403, "foreign_origin"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newAlarmFixture(t, tc.change)
			status, body := f.do("POST", "/v1/alarms", tc.body, tc.headers...)
			if status != tc.status || !strings.Contains(body, tc.code) {
				t.Errorf("%d %s, want %d %s", status, body, tc.status, tc.code)
			}
			if len(f.store.All()) != 0 {
				t.Error("something was published")
			}
		})
	}
	if status, _ := newAlarmFixture(t, nil).do("GET", "/v1/alarms", ""); status != http.StatusMethodNotAllowed {
		t.Errorf("GET is %d", status)
	}
}

// TestAFloodOfAlarmsIsToldToWait: the status is 503, since Alertmanager drops posts answered with 429.
func TestAFloodOfAlarmsIsToldToWait(t *testing.T) {
	f := newAlarmFixture(t, nil)
	many := make([]string, signal.MaxAlerts)
	for i := range many {
		many[i] = alert("firing", fmt.Sprint("f", i), time.Time{}, "alertname", "Busy", "model", fmt.Sprint("m", i))
	}
	f.report(webhook(many...))
	_, _ = f.do("POST", "/v1/alarms", webhook(many...)) // a little over the bound or not, by how fast this machine is
	r, err := http.Post(f.http.URL+"/v1/alarms", "application/json", strings.NewReader(webhook(many...)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if wait, err := strconv.Atoi(r.Header.Get("Retry-After")); r.StatusCode != 503 || err != nil || wait < 1 || wait > 11 || !strings.Contains(string(body), "too_many_alarms") {
		t.Errorf("%d, Retry-After %q, %s; want 503 too_many_alarms after 1 to 11 s", r.StatusCode, r.Header.Get("Retry-After"), body)
	}
}

// TestAnAddressChangesNoProvenAlarm: the alarm came through SNS; an address that knows its
// fingerprint neither weakens nor resolves it.
func TestAnAddressChangesNoProvenAlarm(t *testing.T) {
	f := newAlarmFixture(t, nil)
	now := time.Now()
	proven := signal.Signal{
		Target: suspend.Target{Scope: suspend.Column, Name: "m1"}, Source: "busy/f1", Sender: signal.SenderSNS + "arn", Permille: 100,
		At: now.Add(-time.Minute), Until: now.Add(time.Hour), Kind: signal.Alarm,
	}
	f.store.all = []signal.Signal{proven}
	for _, status := range []string{"firing", "resolved"} {
		if got := f.report(webhook(alert(status, "f1", now, "alertname", "Busy", "model", "m1"))); got != (admin.AlarmReport{Ignored: 1}) {
			t.Errorf("%s: %+v, want it ignored", status, got)
		}
		if all := f.store.All(); len(all) != 1 || all[0] != proven {
			t.Errorf("%s: in force %+v, want the proven alarm as it was", status, all)
		}
	}
	f.report(webhook(alert("firing", "f2", time.Time{}, "alertname", "Busy", "model", "m1")))
	if all := f.store.All(); len(all) != 2 || all[1].Sender != signal.SenderAddress+"127.0.0.1" {
		t.Errorf("in force %+v, want one of this address, too", all)
	}
}

func TestAlarmToken(t *testing.T) {
	f := newAlarmFixture(t, func(o *admin.Options) { o.AlarmToken = "secret" })
	body := webhook(alert("firing", "f1", time.Time{}, "alertname", "Busy", "model", "m1"))
	for header, want := range map[string]int{
		"":                             401,
		"Authorization: secret":        401,
		"Authorization: Bearer":        401,
		"Authorization: Bearer ":       401,
		"Authorization: Bearer wrong":  401,
		"Authorization: Basic secret":  401,
		"Authorization: Bearer secre":  401,
		"Authorization: Bearer secret": 200,
		"Authorization: bearer secret": 200,
	} {
		var headers []string
		if header != "" {
			headers = []string{header}
		}
		if status, body := f.do("POST", "/v1/alarms", body, headers...); status != want {
			t.Errorf("%q: %d %s, want %d", header, status, body, want)
		}
	}
	// With the token, a proxy's host name is let in; the rest of the API still is not.
	if status, answer := f.do("POST", "/v1/alarms", body, "Host: alarms.example", "Authorization: Bearer secret"); status != 200 {
		t.Errorf("through a proxy: %d %s", status, answer)
	}
	if status, _ := f.do("GET", "/api/v1/signals", "", "Host: alarms.example", "Authorization: Bearer secret"); status != 403 {
		t.Errorf("the API through a proxy: %d", status)
	}
}

func TestSignalsAPI(t *testing.T) {
	f := newAlarmFixture(t, nil)
	now := time.Now().Round(0).UTC()
	m1, l3 := suspend.Target{Scope: suspend.Column, Name: "m1"}, suspend.Target{Scope: suspend.Level, Name: "3"}
	for _, s := range []signal.Signal{
		{Target: m1, Source: "poll/waiting", Kind: signal.Poll, Permille: 900, Default: 500, At: now.Add(-time.Minute), Until: now.Add(-time.Second)},
		{Target: m1, Source: "busy/f1", Permille: 700, At: now, Until: now.Add(time.Minute), Reason: "why"},
		{Target: l3, Source: "busy/f1", Permille: 0, At: now, Until: now.Add(time.Minute)},
	} {
		if err := f.store.Publish(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	var list admin.Signals
	f.want(http.StatusOK, "GET", "/api/v1/signals", "", &list)
	if len(list.Signals) != 3 || list.Truncated {
		t.Fatalf("%+v", list)
	}
	if s := list.Signals[0]; !s.Stale || s.Permille != 500 || s.Kind != "poll" || s.Scope != "column" || s.Name != "m1" {
		t.Errorf("stale: %+v", s)
	}
	if s := list.Signals[1]; s.Stale || s.Permille != 700 || s.Reason != "why" || !s.Until.Equal(now.Add(time.Minute)) {
		t.Errorf("alarm: %+v", s)
	}
	f.want(http.StatusOK, "GET", "/api/v1/signals?scope=level&name=3", "", &list)
	if len(list.Signals) != 1 || list.Signals[0].Name != "3" {
		t.Errorf("filtered: %+v", list)
	}
	f.want(http.StatusOK, "GET", "/api/v1/signals?limit=2", "", &list)
	if len(list.Signals) != 2 || !list.Truncated {
		t.Errorf("a page: %+v", list)
	}
	_, metrics := f.do("GET", "/metrics", "")
	for _, want := range []string{
		`penstock_signal_factor{name="m1",scope="column"} 0.5`, `penstock_signal_stale{name="m1",scope="column"} 1`,
		`penstock_signal_sources{name="m1",scope="column"} 2`, `penstock_signal_factor{name="3",scope="level"} 0`,
		`penstock_signal_stale{name="3",scope="level"} 0`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	for _, want := range []bool{true, false} {
		var cleared admin.Cleared
		f.want(http.StatusOK, "DELETE", "/api/v1/signals?scope=column&name=m1&source=busy/f1", "", &cleared)
		if cleared.Cleared != want || len(f.store.All()) != 2 {
			t.Errorf("cleared %v, want %v", cleared.Cleared, want)
		}
	}
	for path, want := range map[string]string{
		"GET /api/v1/signals?scope=x":                        "invalid_scope",
		"GET /api/v1/signals?source=x":                       "invalid_parameter",
		"GET /api/v1/signals?limit=0":                        "invalid_parameter",
		"DELETE /api/v1/signals?scope=x":                     "invalid_scope",
		"DELETE /api/v1/signals?scope=level&name=9&source=a": "invalid_target",
		"DELETE /api/v1/signals?scope=level&name=3":          `"field":"source"`,
	} {
		method, path, _ := strings.Cut(path, " ")
		if status, body := f.do(method, path, ""); status != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %s", path, status, body, want)
		}
	}
	none := newAlarmFixture(t, func(o *admin.Options) { o.Signals = nil })
	for _, method := range []string{"GET", "DELETE"} {
		if status, body := none.do(method, "/api/v1/signals", ""); status != http.StatusNotFound || !strings.Contains(body, "no_signals") {
			t.Errorf("without signals: %d %s", status, body)
		}
	}
}

// polled is a poller that has read one of its two targets.
type polled struct{}

func (polled) Stats() []live.PollStats {
	m := func(name string) suspend.Target { return suspend.Target{Scope: suspend.Column, Name: name} }
	return []live.PollStats{
		{Name: "waiting", Target: m("m1"), Value: 12, At: time.Unix(1000, 0), Polls: 5, Failures: 1},
		{Name: "waiting", Target: m("m2"), Stale: true, Polls: 5, Failures: 1},
	}
}

func TestPollerMetrics(t *testing.T) {
	f := newAlarmFixture(t, func(o *admin.Options) { admin.RegisterPoller(o.Registry, polled{}) })
	_, metrics := f.do("GET", "/metrics", "")
	for _, want := range []string{
		`penstock_poll_value{name="m1",scope="column",signal="waiting"} 12`,
		`penstock_poll_last_read_timestamp_seconds{name="m1",scope="column",signal="waiting"} 1000`,
		`penstock_poll_stale{name="m2",scope="column",signal="waiting"} 1`,
		`penstock_polls_total{signal="waiting"} 5`,
		`penstock_polls_failed_total{signal="waiting"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(metrics, `penstock_poll_value{name="m2"`) {
		t.Error("a metric that was never read has a value")
	}
}
