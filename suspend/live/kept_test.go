package live

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const limited = "version: 1\nlimits:\n  - {user: \"*\", model: \"*\", rate: 1/s}\n"

func openKept(t *testing.T, nc *nats.Conn, path string) (*Policies, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	p, err := OpenPolicies(t.Context(), nc, Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Keep: path})
	if err != nil {
		t.Fatal(err)
	}
	return p, log
}

// A policy stream that is gone, or whose latest version is damaged, does not mean that there are no limits, or older ones.
//
// https://github.com/nats-io/nats-server/issues/7549
func TestALostPolicyStaysInForce(t *testing.T) {
	for _, damage := range []string{"stream gone", "version gone"} {
		t.Run(damage, func(t *testing.T) {
			ns := newNATS(t)
			nc := ns.connect()
			path := filepath.Join(t.TempDir(), "policy")
			p, _ := openKept(t, nc, path)
			ended := make(chan error, 1)
			go func() { ended <- p.Run(t.Context()) }()
			for _, text := range []string{"version: 1\n", limited} {
				changed := p.Changed()
				if _, err := p.Apply(t.Context(), Change{Text: []byte(text), Author: "a"}); err != nil {
					t.Fatal(err)
				}
				receive(t, changed)
			}
			if err := errors.Join(p.Close(), receive(t, ended)); err != nil { // or it would restore the lost policy
				t.Fatal(err)
			}
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			if damage == "stream gone" {
				err = js.DeleteStream(t.Context(), "KV_"+policyBucket)
			} else {
				var s jetstream.Stream
				if s, err = js.Stream(t.Context(), "KV_"+policyBucket); err == nil && s.CachedInfo().State.Msgs == 2 {
					// A key-value bucket denies to delete a message, so the kept copy is of one more than NATS has.
					v := p.Version()
					v.Revision, v.At = v.Revision+1, v.At.Add(1)
					err = saveKept(path, v)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			again, log := openKept(t, nc, path)
			if again.Current().Len() != 1 || !strings.Contains(again.Lost(), "is in force since 2") || !strings.Contains(log.String(), "has lost the policy") {
				t.Errorf("%d rules, lost %q, log %s", again.Current().Len(), again.Lost(), log)
			}
			// Another process, which keeps no copy, gets the policy from NATS again.
			if other := openPolicies(t, ns.connect(), &journal{}); other.Current().Len() != 1 {
				t.Errorf("another process has %d rules", other.Current().Len())
			}
			// An empty policy that is applied lifts the limits, and is no loss.
			background(t, again.Close, func() error { return again.Run(t.Context()) })
			for again.Current().Len() != 0 {
				changed := again.Changed()
				if _, err := again.Apply(t.Context(), Change{Text: []byte("version: 1\n"), Author: "a"}); err != nil {
					t.Fatal(err)
				}
				receive(t, changed)
			}
			if last, _ := openKept(t, nc, path); last.Current().Len() != 0 || last.Lost() != "" {
				t.Errorf("after a removal: %d rules, lost %q", last.Current().Len(), last.Lost())
			}
		})
	}
}

// The copy is there when Apply returns. Run also writes it, but a process that was killed right after the answer of Apply lost
// its limits together with a damaged stream.
func TestAnAppliedPolicyIsKeptBeforeTheAnswer(t *testing.T) {
	nc := newNATS(t).connect()
	path := filepath.Join(t.TempDir(), "policy")
	p, _ := openKept(t, nc, path) // Run does not run
	for _, text := range []string{limited, "version: 1\n"} {
		v, err := p.Apply(t.Context(), Change{Text: []byte(text), Author: "a"})
		if err != nil {
			t.Fatal(err)
		}
		kept, err := loadKept(path)
		if err != nil || string(kept.Text) != text || kept.Revision != v.Revision || !kept.At.Equal(v.At) {
			t.Fatalf("kept %+v, %v, applied %+v", kept, err, v)
		}
	}
	older := p.Version()
	older.Revision, older.Text = 1, []byte(limited)
	p.save(older)
	if kept, err := loadKept(path); err != nil || kept.Revision != 2 {
		t.Errorf("revision %d replaced a later one, %v", kept.Revision, err)
	}
}

// A copy that was damaged is no policy, and no reason not to start.
func TestADamagedCopyIsNoPolicy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy")
	if v, err := loadKept(path); err != nil || v.Document != nil {
		t.Errorf("none: %+v, %v", v, err)
	}
	if err := saveKept(path, Version{Revision: 3, Text: []byte(limited)}); err != nil {
		t.Fatal(err)
	}
	if v, err := loadKept(path); err != nil || v.Revision != 3 || v.Document.Len() != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	value, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, damaged := range []string{"", strings.Replace(string(value), "1/s", "9/s", 1), string(value[:len(value)/2])} {
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadKept(path); !errors.Is(err, errKept) {
			t.Errorf("%q: %v", damaged, err)
		}
		p, log := openKept(t, newNATS(t).connect(), path)
		if p.Current().Len() != 0 || !strings.Contains(log.String(), "cannot be read") {
			t.Errorf("%q: log %s", damaged, log)
		}
	}
}
