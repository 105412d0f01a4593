// Package test holds the tests of the whole: the layout of the tree, the official
// clients against a running server, and killed processes.
package test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/penstockmq/penstock/"

// Imports go downwards only. A package that is not in the table is refused, and so
// is an import that its row does not name: to add one is a decision about the
// design, made here where a review sees it.
//
// project lists packages of this module; a name that ends in /... stands for the
// package and all below it. modules lists import paths of others, as prefixes on a
// path boundary. The standard library is allowed everywhere.
type row struct {
	rank    string
	project []string
	modules []string
}

var (
	nats   = []string{"github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2"}
	client = []string{
		"github.com/apache/rocketmq-clients/golang/v5",
		"google.golang.org/grpc", "google.golang.org/protobuf",
	}
	anything = []string{""}
)

var layout = map[string]row{
	"suspend/deadline": {rank: "0"},
	"suspend/limit":    {rank: "0"},
	"broker/lite":      {rank: "0"},
	"broker/datadir":   {rank: "0"},
	"suspend": {
		rank: "1", project: []string{"suspend/deadline", "suspend/limit", "broker/lite"},
	},
	"suspend/policy": {
		rank: "1", project: []string{"suspend/limit", "broker/lite"},
		modules: []string{"go.yaml.in/yaml/v3", "github.com/fsnotify/fsnotify"},
	},
	"suspend/signal": {
		rank: "1", project: []string{"suspend", "broker/lite"},
		modules: []string{"github.com/prometheus/common", "github.com/prometheus/client_model"},
	},
	"suspend/quota": {
		rank: "2'", project: []string{
			"suspend", "suspend/deadline", "suspend/limit", "suspend/policy", "suspend/signal", "broker/lite",
		},
	},
	"suspend/live": {
		rank: "1'", project: []string{"suspend", "suspend/policy", "suspend/signal", "broker/lite"},
		modules: []string{"github.com/nats-io/nats.go"},
	},
	"readyset": {
		rank: "1", project: []string{"suspend", "suspend/deadline", "suspend/limit", "broker/lite"},
	},
	"broker/store": {
		rank: "2", project: []string{"broker/lite"},
		modules: []string{"github.com/cockroachdb/pebble/v2"},
	},
	"broker/dispatch": {
		rank: "2", project: []string{"suspend/...", "readyset", "broker/lite"},
	},
	"broker": {
		rank: "3", project: []string{"suspend/...", "readyset", "broker/lite", "broker/datadir", "broker/store", "broker/dispatch"},
		modules: []string{"golang.org/x/sync", "github.com/cockroachdb/pebble/v2/vfs"},
	},
	"broker/rpc/penstockv1": {rank: "0", modules: client[1:]},
	"broker/rpc": {
		rank: "4", project: []string{"broker", "broker/dispatch", "broker/lite", "broker/rpc/penstockv1", "suspend/..."},
		modules: append([]string{"golang.org/x/sync"}, client...),
	},
	"broker/admin": {
		rank: "4", project: []string{"broker", "broker/lite", "suspend/..."},
		modules: []string{"github.com/prometheus/client_golang"},
	},
	"consumer/mq": {
		rank: "1'", project: []string{"broker/lite", "broker/rpc/penstockv1"},
		modules: append([]string{"golang.org/x/sync"}, client...),
	},
	"consumer/reply": {
		rank: "1'", project: []string{"broker/lite", "broker/datadir"}, modules: nats,
	},
	"consumer/forward": {
		rank: "1'", project: []string{"consumer/mq", "consumer/reply", "broker/lite", "suspend/..."},
		modules: append([]string{"golang.org/x/sync"}, append(nats, client...)...),
	},
	"consumer": {
		rank: "1'", project: []string{"consumer/...", "broker/lite", "suspend/..."},
		modules: append([]string{"golang.org/x/sync"}, nats...),
	},
	"gateway": {
		rank: "1'", project: []string{"consumer/mq", "consumer/reply", "broker/lite", "suspend/..."},
		modules: append([]string{"golang.org/x/sync", "go.yaml.in/yaml/v3"}, nats...),
	},
	"cmd/mockmodel": {rank: "5"},
	// A module of its own, so it is in no binary.
	"scripts/tools/protogen": {
		rank: "5", modules: []string{"github.com/bufbuild/protocompile", "google.golang.org/protobuf"},
	},
	"cmd/sim": {
		rank: "5", project: []string{"broker/dispatch", "broker/lite", "suspend/..."},
	},
	"cmd/node":     {rank: "5", project: anything, modules: anything},
	"cmd/bench":    {rank: "5", project: anything, modules: anything},
	"cmd/penstock": {rank: "5", project: anything, modules: anything},
}

// TestImportsFollowTheTable reads the imports of every file that is built, tests
// aside: a test may import what it needs.
func TestImportsFollowTheTable(t *testing.T) {
	seen := map[string]bool{}
	for _, file := range goFiles(t) {
		dir := path.Dir(file)
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		seen[dir] = true
		r, ok := layout[dir]
		if !ok {
			if !within(dir, "test") {
				t.Errorf("%s: package %s is not in the table of test/layout_test.go", file, dir)
			}
			continue
		}
		for _, imp := range imports(t, file) {
			if !r.allows(imp) {
				t.Errorf("%s: %s (rank %s) may not import %s", file, dir, r.rank, imp)
			}
		}
	}
	for dir := range layout {
		if !seen[dir] {
			t.Errorf("the table names %s, which has no Go file", dir)
		}
	}
}

func (r row) allows(imp string) bool {
	if own, ok := strings.CutPrefix(imp, module); ok {
		return slices.ContainsFunc(r.project, func(p string) bool {
			below, all := strings.CutSuffix(p, "/...")
			return p == "" || own == p || all && within(own, below)
		})
	}
	first, _, _ := strings.Cut(imp, "/")
	if !strings.Contains(first, ".") {
		return true // standard library
	}
	return slices.ContainsFunc(r.modules, func(m string) bool { return m == "" || within(imp, m) })
}

// TestTableRefuses keeps the check above from becoming one that lets all through.
func TestTableRefuses(t *testing.T) {
	for _, c := range []struct {
		dir, imp string
		want     bool
	}{
		{"suspend/limit", "time", true},
		{"suspend/limit", module + "suspend", false},
		{"suspend/limit", "github.com/nats-io/nats.go", false},
		{"broker/dispatch", module + "suspend", true},
		{"broker/dispatch", module + "suspend/policy", true},
		{"broker/dispatch", module + "broker", false},
		{"broker/dispatch", module + "broker/store", false},
		{"broker/store", "github.com/cockroachdb/pebble/v2/vfs", true},
		{"broker/store", "github.com/cockroachdb/pebble/v2extra", false},
		{"consumer", module + "broker", false},
		{"consumer", module + "consumer/mq", true},
		{"gateway", module + "broker", false},
		{"gateway", module + "consumer", false},
		{"broker/rpc", module + "gateway", false},
		{"cmd/penstock", module + "gateway", true},
	} {
		if got := layout[c.dir].allows(c.imp); got != c.want {
			t.Errorf("%s imports %s: allowed is %v, want %v", c.dir, c.imp, got, c.want)
		}
	}
}

// TestTopLevel keeps the first thing a visitor sees short. What .gitignore names at
// the top is left out.
func TestTopLevel(t *testing.T) {
	want := []string{
		".ci", ".editorconfig", ".gitattributes", ".gitignore", ".golangci.yml",
		"CHANGELOG.md", "LICENSE", "Makefile", "README.md",
		"broker", "cmd", "consumer", "docs", "gateway", "go.mod", "go.sum", "readyset", "scripts", "suspend", "test",
	}
	ignored := []string{".git", "bin", "dist", "penstock-data", "penstock.yaml", "keys.yaml", "go.work", "go.work.sum"}
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); !slices.Contains(want, name) && !slices.Contains(ignored, name) {
			t.Errorf("%s is not among the top-level entries", name)
		}
	}
	for _, name := range want {
		if _, err := os.Stat(filepath.Join("..", name)); err != nil {
			t.Errorf("missing at the top: %v", err)
		}
	}
}

// maxLines bounds a Go file. A file that outgrows it holds two things.
const maxLines = 500

func TestFilesAreShort(t *testing.T) {
	for _, file := range goFiles(t) {
		b := read(t, file)
		if isGenerated(b) {
			continue
		}
		if n := bytes.Count(b, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, over %d", file, n, maxLines)
		}
	}
}

// TestPackagesAreDocumented wants the one sentence that says what a package is for.
func TestPackagesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, file := range goFiles(t) {
		dir := path.Dir(file)
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", file), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		documented[dir] = documented[dir] || f.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no doc comment", dir)
		}
	}
}

// goFiles lists the Go files of the module, slash-separated from its root.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS(".."), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "penstock-data") {
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(name, ".go") {
			files = append(files, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no Go file found")
	}
	return files
}

func imports(t *testing.T, file string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", file), nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	paths := make([]string, 0, len(f.Imports))
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, p)
	}
	return paths
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", file))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func isGenerated(b []byte) bool {
	head, _, _ := bytes.Cut(b, []byte("\npackage "))
	return bytes.Contains(head, []byte("// Code generated ")) && bytes.Contains(head, []byte(" DO NOT EDIT."))
}

// within says whether a slash path is dir or below it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, dir+"/")
}
