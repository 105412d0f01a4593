package gateway

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestNewKey(t *testing.T) {
	secret, entry, err := NewKey("alice", "laptop")
	must(t, err)
	again, _, err := NewKey("alice", "laptop")
	must(t, err)
	if !strings.HasPrefix(secret, "sk-penstock-") || len(secret) != len("sk-penstock-")+43 || secret == again {
		t.Errorf("secret %q", secret)
	}
	if strings.Contains(entry.SHA256, secret[12:]) || entry.User != "alice" || entry.Name != "laptop" {
		t.Errorf("entry %+v", entry)
	}
	set, err := NewKeySet(entry)
	must(t, err)
	if user, ok := set.User(secret); !ok || user != "alice" {
		t.Errorf("%q %v", user, ok)
	}
	for _, wrong := range []string{"", secret[:len(secret)-1], secret + "x", entry.SHA256, again, strings.Repeat("x", 1<<20)} {
		if user, ok := set.User(wrong); ok || user != "" {
			t.Errorf("%.40q is %q's", wrong, user)
		}
	}
	if _, _, err := NewKey("*", ""); err == nil {
		t.Error("a key for the wildcard")
	}
}

var testHash = hashKey("k")

func TestParseKeys(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"yaml", "keys:\n  - user: alice\n    sha256: " + testHash + "\n    name: x\n", ""},
		{"json", `{"keys":[{"user":"alice","sha256":"` + testHash + `"}]}`, ""},
		{"upper case hash", `{"keys":[{"user":"alice","sha256":"` + strings.ToUpper(testHash) + `"}]}`, ""},
		{"empty", "", ""},
		{"no keys", "keys: []", ""},
		{"unknown key", `{"keys":[{"user":"a","sha256":"` + testHash + `","role":"x"}]}`, "role"},
		{"unknown top key", `{"key":[]}`, "key"},
		{"no user", `{"keys":[{"sha256":"` + testHash + `"}]}`, "keys[0]: gateway: malformed key file: user"},
		{"wildcard user", `{"keys":[{"user":"*","sha256":"` + testHash + `"}]}`, "user"},
		{"short hash", `{"keys":[{"user":"a","sha256":"abcd"}]}`, "sha256: want 64"},
		{"plain key", `{"keys":[{"user":"a","sha256":"sk-penstock-x"}]}`, "sha256: want 64"},
		{"twice", `{"keys":[{"user":"a","sha256":"` + testHash + `"},{"user":"b","sha256":"` + testHash + `"}]}`, "keys[1]"},
		{"two documents", "keys: []\n---\nkeys: []\n", "second document"},
		{"a list", "[]", "keyDocument"},
	} {
		set, err := ParseKeys([]byte(tt.text))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && (!errors.Is(err, ErrKeys) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: error %v, want %q in it", tt.name, err, tt.want)
		case tt.want != "" && strings.Contains(err.Error(), "sk-penstock-x"):
			t.Errorf("%s: the error has the key in it: %v", tt.name, err)
		case tt.want == "" && set.Len() > 0:
			if user, ok := set.User("k"); !ok || user != "alice" {
				t.Errorf("%s: %q", tt.name, user)
			}
		}
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add([]byte("keys:\n  - {user: a, sha256: " + testHash + "}\n"))
	f.Add([]byte("keys: &a [*a]"))
	f.Add([]byte("{}\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := ParseKeys(data); err != nil && !errors.Is(err, ErrKeys) {
			t.Fatalf("error %v", err)
		}
	})
}

func TestAppendKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	first, e1, err := NewKey("alice", "")
	must(t, err)
	must(t, AppendKey(path, e1))
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, append([]byte("# who is who\n"), text...), 0o600))
	second, e2, err := NewKey("bob", "ci")
	must(t, err)
	must(t, AppendKey(path, e2))
	if err := AppendKey(path, e2); !errors.Is(err, ErrKeys) {
		t.Errorf("the same key twice: %v", err)
	}
	text, err = os.ReadFile(path)
	must(t, err)
	if !strings.Contains(string(text), "# who is who") || strings.Contains(string(text), second) {
		t.Errorf("file:\n%s", text)
	}
	keys, err := OpenKeys(path, nil)
	must(t, err)
	for secret, user := range map[string]string{first: "alice", second: "bob"} {
		if got, ok := keys.User(secret); !ok || got != user {
			t.Errorf("%s is %q's", user, got)
		}
	}
	must(t, os.WriteFile(path, []byte("keys: 7"), 0o600))
	if err := AppendKey(path, e1); !errors.Is(err, ErrKeys) {
		t.Errorf("a broken file: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".keys-*")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v %v", left, err)
	}
}

func TestOpenKeysRefusesABadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if _, err := OpenKeys(path, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	must(t, os.WriteFile(path, []byte("keys: 7"), 0o600))
	if _, err := OpenKeys(path, nil); !errors.Is(err, ErrKeys) || !strings.Contains(err.Error(), path) {
		t.Errorf("bad file: %v", err)
	}
}

// A change acts within a second; a broken file keeps the keys of before; a repaired one is read.
func TestKeysFollowTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	write := func(users ...string) {
		t.Helper()
		text := "keys:\n"
		for _, u := range users {
			text += "  - {user: " + u + ", sha256: " + hashKey(u) + "}\n"
		}
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("alice")
	synctest.Test(t, func(t *testing.T) {
		keys, err := OpenKeys(path, nil)
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- keys.Run(ctx) }()
		check := func(step string, want map[string]bool) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			for user, ok := range want {
				if _, got := keys.User(user); got != ok {
					t.Errorf("%s: %s's key is known: %v", step, user, got)
				}
			}
		}
		check("start", map[string]bool{"alice": true, "bob": false})
		write("alice", "bob")
		check("added", map[string]bool{"alice": true, "bob": true})
		write("bobby")
		check("revoked", map[string]bool{"alice": false, "bob": false, "bobby": true})
		must(t, os.WriteFile(path, []byte("keys: 7"), 0o600))
		check("broken", map[string]bool{"bobby": true})
		must(t, os.Remove(path))
		check("gone", map[string]bool{"bobby": true})
		write("alice")
		check("back", map[string]bool{"alice": true, "bobby": false})
		stop()
		must(t, <-done)
	})
}

// A file that is old and has not changed is not read again; one with another time stamp is.
func TestKeysReadOnlyWhatChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	must(t, os.WriteFile(path, []byte("keys:\n  - {user: alice, sha256: "+hashKey("alice")+"}\n"), 0o600))
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(path, old, old))
	keys, err := OpenKeys(path, nil)
	must(t, err)
	before := keys.set.Load()
	keys.refresh(time.Now())
	if keys.set.Load() != before {
		t.Error("an unchanged file was read")
	}
	must(t, os.Chtimes(path, old.Add(time.Minute), old.Add(time.Minute)))
	keys.refresh(time.Now())
	if keys.set.Load() == before {
		t.Error("a changed file was not read")
	}
}
