package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestParseParts: several files are one document, and what two of them say is a fault that names both.
func TestParseParts(t *testing.T) {
	doc, err := ParseParts([]Part{
		{"a.yaml", []byte("version: 1\ncost: bytes\nlimits: [{user: a, depth: 1}]\nalarms: [{name: x, level: 2, match: {a: b}, factor: 0.5}]\n")},
		{"b.yml", []byte("version: 1\nlimits: [{user: b, depth: 2}]\nlevels:\n  - {level: 2, rate: 1/s}\nbroker: {rate: 5/s}\n")},
		{"c.yaml", []byte("version: 1\nlimits: [{user: b, depth: 2, model: '*'}]\nbroker: [{rate: 5/s, shadow: true}]\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if doc.Len() != 6 || doc.CostUnit() != Bytes {
		t.Errorf("%d rules, cost %v", doc.Len(), doc.CostUnit())
	}
	l := doc.Resolve("b", "m").Explain()
	for _, line := range l {
		if line.Limit == "depth" && (line.File != "c.yaml" || line.Line != 2) {
			t.Errorf("depth %+v", line)
		}
	}

	_, err = ParseParts([]Part{
		{"a.yaml", []byte("version: 1\ncost: bytes\nlimits: [{user: a, depth: 1}]\nimportance: [{key: k, level: 1}]\nlevels: [{level: 2, rate: 1/s}]\n" +
			"alarms: [{name: x, level: 2, match: {a: b}, factor: 0.5}, {name: y, level: 1, match: {a: b}, factor: 0.5}]\nbroker: {rate: 5/s}\n")},
		{"b.yaml", []byte("version: 1\ncost: bytes\nlimits:\n  - {user: a, rate: 5/s}\nimportance: [{key: k, level: 1}]\n" +
			"alarms: [{name: x, level: 2, match: {a: b}, factor: 0.5}]\nbroker: {rate: 5/s}\n")},
		{"c.yaml", []byte("")},
		{"d.yaml", []byte("limits: []\n")},
	})
	want := []string{
		`policy a.yaml line 6: alarms[1].level: is 1, which has no limit`,
		`policy b.yaml line 2: cost: is set already in a.yaml line 2`,
		`policy b.yaml line 4: limits[0]: user "a" has a rule already in a.yaml line 3`,
		`policy b.yaml line 5: importance[0]: key "k" is set already in a.yaml line 4`,
		`policy b.yaml line 6: alarms[0]: alarm "x" is set already in a.yaml line 6`,
		`policy b.yaml line 7: broker: broker has a rule already in a.yaml line 7`,
		`policy c.yaml: document: is empty`,
		`policy d.yaml line 1: version: is missing`,
	}
	faults := faultsOf(err)
	for i, f := range faults {
		if i >= len(want) || !strings.HasPrefix(f.Error(), want[i]) {
			t.Errorf("fault %d: %v", i, f)
		}
	}
	if len(faults) != len(want) {
		t.Errorf("%d faults, want %d", len(faults), len(want))
	}

	half := []byte("version: 1\n#" + strings.Repeat("x", MaxBytes/2))
	if _, err := ParseParts([]Part{{"a.yaml", half}, {"b.yaml", half}}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "the limit is 16777216") {
		t.Errorf("too many bytes together: %v", err)
	}
}

func TestParseBoundsRulesOverFiles(t *testing.T) {
	p := newParser()
	p.entries["limits"] = MaxRules
	root, fault := decode([]byte("version: 1\nlimits: [{user: a, depth: 1}]"))
	if fault != nil {
		t.Fatal(fault)
	}
	p.document(root)
	if len(p.faults) != 1 || !strings.Contains(p.faults[0].Reason, "has 100001 entries, the limit is 100000") {
		t.Errorf("%v", p.faults)
	}
}

// folder is a policy directory with a depth for user a in one file and a row in another.
func folder(t *testing.T, dir string, depth int64) {
	t.Helper()
	write(t, filepath.Join(dir, "10-cells.yaml"), depthDoc(depth))
	write(t, filepath.Join(dir, "20-rows.yml"), fmt.Sprintf("version: 1\nrows: [{user: a, in_flight: %d}]\n", depth))
	write(t, filepath.Join(dir, ".hidden.yaml"), "nonsense")
	write(t, filepath.Join(dir, "README.md"), "nonsense")
}

func TestFolderIsFollowed(t *testing.T) {
	dir := t.TempDir()
	folder(t, dir, 1)
	if err := os.Mkdir(filepath.Join(dir, "old.yaml"), 0o700); err != nil { // a folder is none of its files
		t.Fatal(err)
	}
	f, log := follow(t, dir, unpolled)
	if row, _ := f.Current().Row("a"); depthOf(f) != 1 || row.InFlight != 1 {
		t.Fatalf("at start: depth %d, row %+v", depthOf(f), row)
	}
	write(t, filepath.Join(dir, "10-cells.yaml"), depthDoc(2))
	waitDepth(t, f, 2)
	write(t, filepath.Join(dir, "30.yaml"), "version: 1\nlimits: [{user: u, depth: 3}]\n")
	waitDepth(t, f, 3)
	write(t, filepath.Join(dir, "40.yaml"), "version: 1\nlimits: [{user: u, depth: 4}]\n")
	waitMessage(t, log, `policy 40.yaml line 2: limits[0]: user "u" has a rule already in 30.yaml line 2`)
	if depthOf(f) != 3 {
		t.Errorf("depth is %d with a file that is refused", depthOf(f))
	}
	rename(t, filepath.Join(dir, "40.yaml"), filepath.Join(dir, "40.yaml~"))
	waitMessage(t, log, "INFO policy changed") // back to what is in force
	if err := os.Remove(filepath.Join(dir, "30.yaml")); err != nil {
		t.Fatal(err)
	}
	waitDepth(t, f, 2)
}

// TestFolderFollowsConfigMap: all files change at once with the link ..data.
func TestFolderFollowsConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(depth int64) string {
		name := fmt.Sprintf("..v%d", depth)
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		folder(t, filepath.Join(dir, name), depth)
		return name
	}
	symlink(t, version(1), filepath.Join(dir, "..data"))
	for _, name := range []string{"10-cells.yaml", "20-rows.yml"} {
		symlink(t, filepath.Join("..data", name), filepath.Join(dir, name))
	}
	f, _ := follow(t, dir, unpolled)
	for depth := int64(2); depth < 4; depth++ {
		symlink(t, version(depth), filepath.Join(dir, "..data_tmp"))
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
		waitDepth(t, f, depth)
		if row, _ := f.Current().Row("a"); row.InFlight != depth {
			t.Errorf("row of version %d beside cells of version %d", row.InFlight, depth)
		}
	}
}

// TestFolderWithoutFiles: neither at start nor later does an empty folder lift the limits.
func TestFolderWithoutFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrNoFiles) {
		t.Errorf("empty folder: %v", err)
	}
	write(t, filepath.Join(dir, "a.yaml"), depthDoc(1))
	log := newRecords()
	f, err := Open(dir, slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	f.check()
	f.check()
	waitMessage(t, log, ErrNoFiles.Error())
	if depthOf(f) != 1 || len(log.messages) != 0 {
		t.Errorf("depth is %d, %d more messages", depthOf(f), len(log.messages))
	}
	write(t, filepath.Join(dir, "b.yaml"), "version: 1\nlimits: [{user: '*', depth: 1, rate: 0/s}]")
	f.check()
	waitMessage(t, log, "policy b.yaml line 2: limits[0].rate")
}

func TestFolderIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range maxFiles + 1 {
		write(t, filepath.Join(dir, fmt.Sprintf("%04d.yaml", i)), "version: 1\n")
	}
	if _, err := Open(dir, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "more than 1000 files") {
		t.Errorf("too many files: %v", err)
	}
	dir = t.TempDir()
	symlink(t, "nowhere", filepath.Join(dir, "a.yaml"))
	if _, err := Open(dir, slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a link to nothing: %v", err)
	}
}
