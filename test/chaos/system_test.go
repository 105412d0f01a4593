package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/gateway"
)

const (
	requestTopic = "requests"
	requestGroup = "pool"
	// requestLease is shorter than a stall, so that leases end in one.
	requestLease = 3 * time.Second
	stallMax     = 5500 * time.Millisecond
)

// policyText is put in force at the start of a run and never changed.
const policyText = `version: 1
columns:
  - {model: narrow, in_flight: 2}
  - {model: paced, rate: 8/s}
`

// layoutUp and layoutSplit are the two ways in which penstock is deployed.
const (
	layoutUp    = "up"
	layoutSplit = "split"
)

// system is a deployment with its addresses and keys.
type system struct {
	t                       *testing.T
	j                       *journal
	layout                  string
	procs                   []*process
	grpc, http, admin, data string
	keys                    []string
	web                     *http.Client
}

// newSystem starts nothing.
func newSystem(t *testing.T, j *journal, layout, data, model string) *system {
	t.Helper()
	s := &system{
		t: t, j: j, layout: layout, data: data, grpc: freeAddr(t), http: freeAddr(t), admin: freeAddr(t),
		web: &http.Client{Timeout: 15 * time.Second},
	}
	nats, keyFile := freeAddr(t), filepath.Join(t.TempDir(), "keys.yaml")
	for _, user := range []string{"alice", "bob", "carol"} {
		secret, entry, err := gateway.NewKey(user, "")
		if err == nil {
			err = gateway.AppendKey(keyFile, entry)
		}
		if err != nil {
			t.Fatal(err)
		}
		s.keys = append(s.keys, secret)
	}
	const grace = "3s"
	lease := requestLease.String()
	pool := []string{"--model", "*=" + model, "--invisible", lease, "--grace", grace}
	if layout == layoutUp {
		s.procs = []*process{newProcess(t, "up", append([]string{
			"up", "--data", data, "--grpc", s.grpc, "--http", s.http, "--admin", s.admin, "--nats", nats, "--keys", keyFile,
		}, pool...)...)}
		return s
	}
	url := "nats://" + nats
	s.procs = []*process{
		newProcess(t, "broker", "broker", "--data", data, "--grpc", s.grpc, "--admin", s.admin, "--nats", nats, "--auto-create"),
		newProcess(t, "gateway", "gateway", "--broker", s.grpc, "--nats-url", url, "--http", s.http, "--admin", freeAddr(t), "--keys", keyFile, "--grace", grace),
		newProcess(t, "consumer", append([]string{"consumer", "--broker", s.grpc, "--nats-url", url, "--admin", freeAddr(t)}, pool...)...),
	}
	return s
}

// start starts all processes.
func (s *system) start() {
	s.t.Helper()
	for _, p := range s.procs {
		if err := p.start(startMax); err != nil {
			s.t.Fatal(err)
		}
	}
}

// stop ends all processes with SIGTERM, the broker last.
func (s *system) stop() {
	for _, p := range slices.Backward(s.procs) {
		if err := p.stop(); err != nil {
			s.j.find(ruleState, p.name, "%v", err)
		}
	}
}

// operate calls the operations API and reads its answer into out, which may be nil.
func (s *system) operate(method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(context.Background(), method, "http://"+s.admin+path, body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := s.web.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, b)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(b, out)
	}
	return err
}

// mustOperate ends the test if the call fails.
func (s *system) mustOperate(method, path string, in, out any) {
	s.t.Helper()
	if err := s.operate(method, path, in, out); err != nil {
		s.t.Fatal(err)
	}
}

const suspendsPath = "/api/v1/groups/" + requestGroup + "/suspends"

// applyPolicy puts the limits of the run in force.
func (s *system) applyPolicy() {
	s.t.Helper()
	s.mustOperate(http.MethodPut, "/api/v1/policy", admin.ApplyPolicy{Text: policyText, Author: "chaos"}, nil)
	s.j.change(func() {
		s.j.h.limits[columnNarrow] = limit{inFlight: narrowInFlight}
		s.j.h.limits[columnPaced] = limit{perSecond: pacedPerSecond, burst: 1}
	})
}

// hold holds a column until an instant, which it returns.
func (s *system) hold(column string, d time.Duration) time.Time {
	s.t.Helper()
	var held admin.Suspend
	length := admin.Duration(d)
	s.mustOperate(http.MethodPut, suspendsPath, admin.SetSuspend{Scope: "column", Name: column, Duration: &length, Reason: "chaos"}, &held)
	return held.Until
}

// lift ends a hold.
func (s *system) lift(column string) {
	s.t.Helper()
	s.mustOperate(http.MethodDelete, suspendsPath+"?scope=column&name="+column, nil, nil)
}

// checkState compares the reports of the program with the settings of the run: after a start, and at the end.
func (s *system) checkState(when string, holds map[string]time.Time) {
	var list admin.Suspends
	if err := s.operate(http.MethodGet, suspendsPath, nil, &list); err != nil {
		s.j.find(ruleState, "suspends", "%s: %v", when, err)
		return
	}
	have := map[string]time.Time{}
	for _, h := range list.Suspends {
		have[h.Name] = h.Until
	}
	for column, until := range holds {
		if d := have[column].Sub(until); time.Now().Before(until) && (d < -time.Millisecond || d > time.Millisecond) {
			s.j.find(ruleState, column, "%s: held until %v, was set to %v", when, have[column], until)
		}
	}
	var p admin.Policy
	if err := s.operate(http.MethodGet, "/api/v1/policy", nil, &p); err != nil {
		s.j.find(ruleState, "policy", "%s: %v", when, err)
	} else if !strings.Contains(p.Document, columnNarrow) || !strings.Contains(p.Document, columnPaced) {
		s.j.find(ruleState, "policy", "%s: the policy in force is %q", when, p.Document)
	}
}

// checkEmpty wants no message to be left in a topic. Requests that timed out leave their bucket when their deadline has
// passed, so there is time for that.
func (s *system) checkEmpty(topic string) {
	deadline := time.Now().Add(requestTimeout + requestLease)
	for {
		var list admin.Buckets
		err := s.operate(http.MethodGet, "/api/v1/topics/"+topic+"/buckets?limit=1000", nil, &list)
		queued, first := 0, ""
		for _, b := range list.Buckets {
			if queued += b.Queued; b.Queued > 0 && first == "" {
				first = fmt.Sprintf("%+v", b)
			}
		}
		if err == nil && queued == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.j.find(ruleState, topic, "%d messages are left at the end, error %v, the first in %s", queued, err, first)
			return
		}
		pause(context.Background(), 500*time.Millisecond)
	}
}
