package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstockmq/penstock/broker/datadir"
	"github.com/penstockmq/penstock/broker/store"
)

// TestStoreRepair goes the way out that a start with a damaged log names.
func TestStoreRepair(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	dir := filepath.Join(data, "store")
	s, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for off := range uint64(100) {
		b := s.NewBatch()
		b.PutMessage(1, off, &store.Message{Body: bytes.Repeat([]byte("x"), 700)})
		if err := s.Apply(b, store.Durable); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// As kill -9 leaves it, and then a bit flips.
	killed := filepath.Join(data, "killed", "store")
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(killed, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	newest := logs[len(logs)-1]
	b, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(newest, b, 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) (code int, text string) {
		var out bytes.Buffer
		code = run(append([]string{"store", "repair", "--data", filepath.Dir(killed)}, args...), nil, strings.NewReader(""), &out, &out)
		return code, out.String()
	}
	if _, err := store.Open(store.Options{Dir: killed}); err == nil || !strings.Contains(err.Error(), "penstock store repair") {
		t.Fatalf("the start ends with %v, which does not name the way out", err)
	}
	if code, text := command(); code != exitFailed || !strings.Contains(text, "--yes") || !strings.Contains(text, filepath.Base(newest)) {
		t.Errorf("look: exit %d, %s", code, text)
	}
	lock, err := datadir.Acquire(t.Context(), filepath.Dir(killed), 0)
	if err != nil {
		t.Fatal(err)
	}
	if code, text := command("--yes"); code != exitFailed || !strings.Contains(text, "in use") {
		t.Errorf("of a folder in use: exit %d, %s", code, text)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if code, text := command("--yes"); code != exitOK || !strings.Contains(text, ".cut") {
		t.Errorf("cut: exit %d, %s", code, text)
	}
	if code, text := command(); code != exitOK || !strings.Contains(text, "whole") {
		t.Errorf("look again: exit %d, %s", code, text)
	}
	if s, err = store.Open(store.Options{Dir: killed}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
