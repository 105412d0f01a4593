package live

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/penstockmq/penstock/suspend/policy"
)

func text(rate int) []byte {
	return fmt.Appendf(nil, "version: 1\nlimits: [{user: alice, rate: %d/s}]\n", rate)
}

func mustApply(t *testing.T, p *Policies, rate int) Version {
	t.Helper()
	v, err := p.Apply(t.Context(), Change{Text: text(rate), Author: "ops", Comment: fmt.Sprintf("rate %d", rate)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// await waits until the revision is in force.
func await(t *testing.T, p *Policies, revision uint64) {
	t.Helper()
	for {
		changed := p.Changed()
		if p.Version().Revision == revision {
			return
		}
		receive(t, changed)
	}
}

func TestApplyActsEverywhere(t *testing.T) {
	server := newNATS(t)
	a, b := runPolicies(t, server.connect()), runPolicies(t, server.connect())
	if v := a.Version(); v.Revision != 0 || v.Document.Len() != 0 || a.Current() == nil {
		t.Errorf("before the first: %+v", v)
	}
	applied := mustApply(t, a, 5)
	for _, p := range []*Policies{a, b} {
		await(t, p, applied.Revision)
		v := p.Version()
		if p.Current().Len() != 1 || v.Author != "ops" || v.Comment != "rate 5" || string(v.Text) != string(text(5)) || !v.At.Equal(applied.At) {
			t.Errorf("%+v", v)
		}
	}
	// Who joins later has it before anything else.
	if v := openPolicies(t, server.connect(), &journal{}).Version(); v.Revision != applied.Revision || v.Document.Len() != 1 {
		t.Errorf("late: %+v", v)
	}
}

func TestApplyRefuses(t *testing.T) {
	server := newNATS(t)
	p := runPolicies(t, server.connect())
	first := mustApply(t, p, 1)
	second := mustApply(t, p, 2)
	for name, tc := range map[string]struct {
		change Change
		want   error
		text   string
	}{
		"invalid":         {Change{Text: []byte("version: 1\nlimits: [{user: alice, rate: fast}]"), Author: "a"}, policy.ErrInvalid, "limits[0].rate"},
		"empty":           {Change{Author: "a"}, policy.ErrInvalid, "empty"},
		"not UTF-8":       {Change{Text: []byte("version: 1 # \xff"), Author: "a"}, policy.ErrInvalid, "UTF-8"},
		"too large":       {Change{Text: append(text(1), "#"+strings.Repeat("x", 8<<20)...), Author: "a"}, policy.ErrInvalid, "max_payload"},
		"nobody":          {Change{Text: text(3)}, ErrField, "author"},
		"long author":     {Change{Text: text(3), Author: strings.Repeat("a", maxAuthor+1)}, ErrField, "author"},
		"control":         {Change{Text: text(3), Author: "a\x1b[2J"}, ErrField, "author"},
		"long comment":    {Change{Text: text(3), Author: "a", Comment: strings.Repeat("a", maxComment+1)}, ErrField, "comment"},
		"changed between": {Change{Text: text(3), Author: "a", Expect: first.Revision}, ErrConflict, ""},
		"never was":       {Change{Text: text(3), Author: "a", Expect: 999}, ErrConflict, ""},
	} {
		if _, err := p.Apply(t.Context(), tc.change); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if v, err := p.Apply(t.Context(), Change{Text: text(3), Author: "a", Expect: second.Revision}); err != nil || v.Revision <= second.Revision {
		t.Errorf("as expected: %+v, %v", v, err)
	}
	if h, err := p.History(t.Context(), 0); err != nil || len(h) != 3 {
		t.Errorf("%d versions, %v", len(h), err)
	}
}

func TestHistoryAndRollback(t *testing.T) {
	p := runPolicies(t, newNATS(t).connect())
	if h, err := p.History(t.Context(), 0); err != nil || len(h) != 0 {
		t.Errorf("before the first: %v, %v", h, err)
	}
	var last Version
	for rate := range HistoryMax + 3 {
		last = mustApply(t, p, rate+1)
	}
	h, err := p.History(t.Context(), 0)
	if err != nil || len(h) != HistoryMax || h[0].Revision != last.Revision || h[HistoryMax-1].Comment != "rate 4" {
		t.Fatalf("%d versions, first %+v, %v", len(h), h[0], err)
	}
	if h, err := p.History(t.Context(), 2); err != nil || len(h) != 2 || h[1].Comment != "rate 66" || h[1].Document != nil || h[1].Text != nil {
		t.Errorf("two: %+v, %v", h, err)
	}
	old, err := p.Get(t.Context(), h[10].Revision)
	if err != nil || len(old.Text) == 0 {
		t.Fatalf("%+v, %v", old, err)
	}
	v, err := p.Rollback(t.Context(), old.Revision, "ops", "too fast")
	if err != nil || v.From != old.Revision || string(v.Text) != string(old.Text) || v.Revision != last.Revision+1 {
		t.Fatalf("%+v, %v", v, err)
	}
	await(t, p, v.Revision)
	if got := p.Version(); got.From != old.Revision || got.Comment != "too fast" {
		t.Errorf("%+v", got)
	}
	if got, err := p.Get(t.Context(), old.Revision); err != nil || got.Comment != old.Comment {
		t.Errorf("%+v, %v", got, err)
	}
	for _, revision := range []uint64{0, 1, v.Revision + 1} {
		if _, err := p.Get(t.Context(), revision); !errors.Is(err, ErrNoVersion) {
			t.Errorf("get %d: %v", revision, err)
		}
		if _, err := p.Rollback(t.Context(), revision, "ops", ""); !errors.Is(err, ErrNoVersion) {
			t.Errorf("rollback to %d: %v", revision, err)
		}
	}
}

// TestBrokenPolicyInNATS: what another program puts there cannot do harm, and who joins afterwards has the same in force.
func TestBrokenPolicyInNATS(t *testing.T) {
	for name, breakIt := range map[string]func(jetstream.KeyValue) error{
		"no JSON": func(kv jetstream.KeyValue) error {
			_, err := kv.Put(t.Context(), policyKey, []byte("version: 1"))
			return err
		},
		"no policy": func(kv jetstream.KeyValue) error {
			_, err := kv.Put(t.Context(), policyKey, []byte(`{"text":"version: 9","author":"x"}`))
			return err
		},
		"deleted": func(kv jetstream.KeyValue) error { return kv.Delete(t.Context(), policyKey) },
	} {
		t.Run(name, func(t *testing.T) {
			server := newNATS(t)
			p := runPolicies(t, server.connect())
			good := mustApply(t, p, 7)
			await(t, p, good.Revision)
			if err := breakIt(p.bucket.kv); err != nil {
				t.Fatal(err)
			}
			if v := openPolicies(t, server.connect(), &journal{}).Version(); v.Revision != good.Revision {
				t.Errorf("who joins has %+v", v)
			}
			// The next good one acts, and the broken one never did.
			changed := p.Changed()
			next := mustApply(t, p, 8)
			receive(t, changed)
			if v := p.Version(); v.Revision != next.Revision {
				t.Errorf("in force: %+v", v)
			}
		})
	}
}

// TestPoliciesSurviveNATS: the policy stays while NATS is away, and what is applied after its return acts.
func TestPoliciesSurviveNATS(t *testing.T) {
	for name, loses := range map[string]bool{"restart": false, "restart without its files": true} {
		t.Run(name, func(t *testing.T) {
			server := newNATS(t)
			nc := server.connect()
			p := runPolicies(t, nc)
			mustApply(t, p, 1)
			v := mustApply(t, p, 2)
			await(t, p, v.Revision)
			server.stop(nc)
			if _, err := p.Apply(t.Context(), Change{Text: text(3), Author: "a"}); !errors.Is(err, ErrDisconnected) {
				t.Errorf("apply while it is away: %v", err)
			}
			if loses {
				server.dir = t.TempDir()
			}
			server.restart(nc)
			other := openPolicies(t, server.connect(), &journal{})
			if got := other.Version().Revision; (got == v.Revision) == loses {
				t.Errorf("who joins has revision %d", got)
			}
			// A NATS that came back without the policy gets it again, as a new revision.
			if got := p.Version(); string(got.Text) != string(v.Text) || !loses && got.Revision != v.Revision {
				t.Errorf("in force: %+v", got)
			}
			next := mustApply(t, other, 4)
			for changed := p.Changed(); p.Version().Comment != "rate 4"; changed = p.Changed() {
				receive(t, changed)
			}
			if got := p.Version(); got.Revision != next.Revision || got.Comment != "rate 4" {
				t.Errorf("in force: %+v", got)
			}
		})
	}
}

func TestOpenWithoutJetStream(t *testing.T) {
	server := newNATS(t)
	nc := server.connect()
	if _, err := OpenPolicies(t.Context(), nc, Options{Replicas: -1}); err == nil || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("replicas: %v", err)
	}
	nc.Close()
	if _, err := OpenPolicies(t.Context(), nc, Options{}); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("closed: %v", err)
	}
}
