package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/penstockmq/penstock/cmd/node"
)

// loadWith loads a file's text, "K=V" variables and arguments as a server would.
func loadWith(t *testing.T, file string, environ, args []string) (settings, error) {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	def := node.Defaults()
	addServerFlags(fs, def)
	addBrokerFlags(fs, def)
	addClientFlags(fs, def)
	addGatewayFlags(fs, def)
	addPoolFlags(fs, def)
	addSharedFlags(fs, def)
	addModelFlags(fs)
	if file != "" {
		path := filepath.Join(t.TempDir(), "penstock.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return load(fs, newEnvironment(environ), def)
}

func TestPrecedence(t *testing.T) {
	file := "workers: 10\ngrace: 1s\ncache: 1GiB\nauto-create: true\nlog-level: warn\n"
	env := []string{"PENSTOCK_WORKERS=20", "PENSTOCK_GRACE=2s", "PENSTOCK_AUTO_CREATE=false", "PENSTOCK_TTL=", "HOME=/"}
	s, err := loadWith(t, file, env, []string{"--workers", "30"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Workers != 30 {
		t.Errorf("workers %d, want the flag's 30", s.Workers)
	}
	if s.Grace != 2*time.Second {
		t.Errorf("grace %v, want the variable's 2s", s.Grace)
	}
	if s.AutoCreate {
		t.Error("auto-create is true, want the variable's false")
	}
	if s.Cache != node.GiB || s.LogLevel != "warn" {
		t.Errorf("cache %v, log-level %s, want the file's 1GiB and warn", s.Cache, s.LogLevel)
	}
	if s.TTL != node.Defaults().TTL || s.InFlight != 1 {
		t.Errorf("ttl %v, in-flight %d, want the defaults", s.TTL, s.InFlight)
	}
}

func TestFlagAtItsDefaultStillWins(t *testing.T) {
	s, err := loadWith(t, "workers: 10\n", nil, []string{"--workers", "4096"})
	if err != nil || s.Workers != 4096 {
		t.Errorf("workers %d, error %v; want 4096, which was asked for", s.Workers, err)
	}
}

func TestConfigFileFromEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("workers: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := loadWith(t, "", []string{"PENSTOCK_CONFIG=" + path}, nil)
	if err != nil || s.Workers != 7 {
		t.Errorf("workers %d, error %v; want 7", s.Workers, err)
	}
}

func TestDefaultFileIsRead(t *testing.T) {
	t.Chdir(t.TempDir())
	if s, err := loadWith(t, "", nil, nil); err != nil || s.Workers != 4096 {
		t.Fatalf("without a file: workers %d, error %v", s.Workers, err)
	}
	if err := os.WriteFile(defaultFile, []byte("workers: 8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := loadWith(t, "", nil, nil); err != nil || s.Workers != 8 {
		t.Errorf("with a file: workers %d, error %v; want 8", s.Workers, err)
	}
}

func TestLists(t *testing.T) {
	file := `
models:
  - {name: GPT-4o, url: "https://a.example/v1", key-env: SOME_KEY, total-timeout: 30s, allow: ["POST /v1/responses"]}
  - {name: small, url: "http://b.example/v1"}
topics:
  - {name: batch, ttl: 1h, max-bytes: 64MiB, expire-backlog: true}
groups:
  - {name: batch-workers, topic: batch, wildcard: true, in-flight: 4}
`
	s, err := loadWith(t, file, []string{"SOME_KEY=s3cret"}, []string{"--model", "small=http://c.example/v1", "--model", "*=http://d.example/v1?a=b"})
	if err != nil {
		t.Fatal(err)
	}
	want := []node.ModelOptions{
		{Name: "GPT-4o", URL: "https://a.example/v1", KeyEnv: "SOME_KEY", Key: "s3cret", Total: 30 * time.Second, Allow: []string{"POST /v1/responses"}},
		{Name: "*", URL: "http://d.example/v1?a=b"},
		{Name: "small", URL: "http://c.example/v1"},
	}
	if len(s.Models) != len(want) {
		t.Fatalf("models %+v, want %+v", s.Models, want)
	}
	for i := range want {
		if !reflect.DeepEqual(s.Models[i], want[i]) {
			t.Errorf("models[%d] is %+v, want %+v", i, s.Models[i], want[i])
		}
	}
	if len(s.Topics) != 1 || s.Topics[0] != (node.TopicOptions{Name: "batch", TTL: time.Hour, MaxBytes: 64 * node.MiB, ExpireBacklog: true}) {
		t.Errorf("topics %+v", s.Topics)
	}
	if len(s.Groups) != 1 || s.Groups[0] != (node.GroupOptions{Name: "batch-workers", Topic: "batch", Wildcard: true, InFlight: 4}) {
		t.Errorf("groups %+v", s.Groups)
	}
}

func TestFaultsNameTheirKey(t *testing.T) {
	for _, c := range []struct {
		name, file string
		env, args  []string
		want       []string
	}{
		{name: "unknown key", file: "worker: 3\n", want: []string{"worker: unknown key"}},
		{name: "unknown key in a list", file: "models: [{name: m, link: x}]\n", want: []string{"models[0].link: unknown key"}},
		{name: "several at once", file: "worker: 3\ngrace: 5\ncache: 1MB\n", want: []string{"worker: unknown key", "grace: 5: want a number and a unit", `cache: size "1MB": want`}},
		{name: "duration without unit", file: "ttl: \"30\"\n", want: []string{`ttl: "30": want a number and a unit`}},
		{name: "size without unit", file: "max-body: 4194304\n", want: []string{"max-body: 4194304: want a whole number and a unit"}},
		{name: "broken number", file: "workers: 1.5\n", want: []string{"workers: 1.5: want a whole number"}},
		{name: "truth for a number", file: "workers: true\n", want: []string{"workers: ", "int"}},
		{name: "word for a truth", file: "auto-create: maybe\n", want: []string{`auto-create: "maybe": want true or false`}},
		{name: "mapping for a scalar", file: "grpc: {port: 1}\n", want: []string{"grpc"}},
		{name: "duration in a list", file: "models: [{name: m, url: \"http://a\", idle-timeout: 5}]\n", want: []string{"models[0].idle-timeout: 5: want"}},
		{name: "bad YAML", file: "a: [\n", want: []string{"config: ", "penstock.yaml", "yaml"}},
		{name: "key twice", file: "workers: 1\nworkers: 2\n", want: []string{"config: ", "workers"}},
		{name: "variable", env: []string{"PENSTOCK_WORKERS=many"}, want: []string{`workers: "many": want a whole number`}},
		{name: "unknown variable", env: []string{"PENSTOCK_WORKER=3"}, want: []string{"PENSTOCK_WORKER"}},
		{name: "model without URL", args: []string{"--model", "gpt-4o"}, want: []string{`model: "gpt-4o": want NAME=URL`}},
		{name: "model key not set", file: "models: [{name: m, url: \"http://a\", key-env: NOT_SET}]\n", want: []string{"models[0].key-env: variable NOT_SET is not set"}},
		{name: "no such file", args: []string{"--config", "/does/not/exist.yaml"}, want: []string{"config: ", "/does/not/exist.yaml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := loadWith(t, c.file, c.env, c.args)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestForeignVariablesAreLeftAlone(t *testing.T) {
	env := []string{
		"PENSTOCK_SERVICE_HOST=10.0.0.1", "PENSTOCK_SERVICE_PORT_HTTP=8080", "PENSTOCK_PORT=tcp://10.0.0.1:8080",
		"PENSTOCK_PORT_8080_TCP_ADDR=10.0.0.1", "PENSTOCK_BROKER_PORT=tcp://10.0.0.1:8081", "PENSTOCK_API_KEY=x", "PENSTOCK_KEY=x",
	}
	if _, err := loadWith(t, "", env, nil); err != nil {
		t.Error(err)
	}
}

func TestConfigIsReadBackTheSame(t *testing.T) {
	file := "workers: 3\ngrace: 1500ms\nnats-url: \"nats://n.example:4222\"\nmodels: [{name: \"*\", url: \"http://a.example/v1\", allow: [GET /v1/models], concurrency: 4}]\n" +
		"topics: [{name: t, ttl: 90s}]\n"
	first, err := loadWith(t, file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := printSettings(&out, first); err != nil {
		t.Fatal(err)
	}
	second, err := loadWith(t, out.String(), nil, nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	var again strings.Builder
	if err := printSettings(&again, second); err != nil {
		t.Fatal(err)
	}
	if out.String() != again.String() || second.Workers != 3 || !reflect.DeepEqual(second.Models[0], first.Models[0]) {
		t.Errorf("read back as\n%s\nfrom\n%s", again.String(), out.String())
	}
}

func TestConfigHidesSecrets(t *testing.T) {
	file := "nats-url: \"nats://user:hunter2@n.example:4222\"\n" +
		"models: [{name: \"*\", url: \"http://bob:hunter2@a.example/v1\", key-env: K}]\n"
	s, err := loadWith(t, file, []string{"K=hunter2"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := printSettings(&out, s); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("a secret is printed:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "n.example:4222") || !strings.Contains(out.String(), "key-env: K") {
		t.Errorf("more than secrets is hidden:\n%s", out.String())
	}
}
