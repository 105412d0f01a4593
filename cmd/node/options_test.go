package node_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/cmd/node"
)

func valid() node.Options {
	o := node.Defaults()
	o.Parts, o.Keys = node.Whole, "keys.yaml"
	o.Models = []node.ModelOptions{{Name: node.Wildcard, URL: "http://127.0.0.1:9000/v1"}}
	return o
}

func TestDefaultsAreValid(t *testing.T) {
	if err := valid().Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	for _, c := range []struct {
		key    string
		change func(*node.Options)
	}{
		{"data", func(o *node.Options) { o.Data = "" }},
		{"grpc", func(o *node.Options) { o.GRPC = "localhost" }},
		{"http", func(o *node.Options) { o.HTTP = "127.0.0.1:99999" }},
		{"admin", func(o *node.Options) { o.Admin = "127.0.0.1:http" }},
		{"nats", func(o *node.Options) { o.NATS = ":" }},
		{"nats-url", func(o *node.Options) { o.NATSURL = "localhost" }},
		{"broker", func(o *node.Options) { o.Broker = "b:8081" }},
		{"tls-cert", func(o *node.Options) { o.TLSKey = "k.pem" }},
		{"topic", func(o *node.Options) { o.Topic = "a b" }},
		{"group", func(o *node.Options) { o.Group = "" }},
		{"ttl", func(o *node.Options) { o.TTL = time.Millisecond }},
		{"in-flight", func(o *node.Options) { o.InFlight = 0 }},
		{"max-attempts", func(o *node.Options) { o.MaxAttempts = -1 }},
		{"max-suspend", func(o *node.Options) { o.MaxSuspend = 0 }},
		{"admin-hosts[1]", func(o *node.Options) { o.AdminHosts = []string{"ops.example", "ops.example:8082"} }},
		{"unserved-ttl", func(o *node.Options) { o.UnservedTTL = 0 }},
		{"max-user-buckets", func(o *node.Options) { o.MaxUserBuckets = 0 }},
		{"max-auto-topics", func(o *node.Options) { o.MaxAutoTopics = 0 }},
		{"max-auto-groups", func(o *node.Options) { o.MaxAutoGroups = 5000 }},
		{"group-retention", func(o *node.Options) { o.GroupRetention = time.Second }},
		{"groups[0].retention", func(o *node.Options) {
			o.Groups = []node.GroupOptions{{Name: "g", Topic: "t", Retention: time.Second}}
		}},
		{"flush", func(o *node.Options) { o.Flush = "sometimes" }},
		{"adapter", func(o *node.Options) { o.Adapter = "java" }},
		{"disk-reserve", func(o *node.Options) { o.DiskReserve = -1 }},
		{"cache", func(o *node.Options) { o.Cache = 1 }},
		{"max-body", func(o *node.Options) { o.MaxBody = node.GiB }},
		{"request-timeout", func(o *node.Options) { o.RequestTimeout = 48 * time.Hour }},
		{"async-ttl", func(o *node.Options) { o.AsyncTTL = time.Hour }},
		{"async-bytes", func(o *node.Options) { o.AsyncBytes = 1 }},
		{"async-user-records", func(o *node.Options) { o.AsyncUserRecords = -1 }},
		{"async-user-bytes", func(o *node.Options) { o.AsyncUserBytes = -1 }},
		{"async-timeout", func(o *node.Options) { o.AsyncTimeout = 0 }},
		{"max-timeout", func(o *node.Options) { o.MaxTimeout = -time.Second }},
		{"keep-alive", func(o *node.Options) { o.KeepAlive = 0 }},
		{"write-timeout", func(o *node.Options) { o.WriteTimeout = 0 }},
		{"workers", func(o *node.Options) { o.Workers = 0 }},
		{"share", func(o *node.Options) { o.Share = 101 }},
		{"invisible", func(o *node.Options) { o.Invisible = time.Millisecond }},
		{"attempts", func(o *node.Options) { o.Attempts = 0 }},
		{"backoff-max", func(o *node.Options) { o.BackoffMax = time.Millisecond }},
		{"grace", func(o *node.Options) { o.Grace = -1 }},
		{"keys", func(o *node.Options) { o.Keys = "" }},
		{"models", func(o *node.Options) { o.Models = nil }},
		{"models[0].name", func(o *node.Options) { o.Models[0].Name = " " }},
		{"models[1].name", func(o *node.Options) { o.Models = append(o.Models, o.Models[0]) }},
		{"models[0].url", func(o *node.Options) { o.Models[0].URL = "ftp://x" }},
		{"models[0]", func(o *node.Options) { o.Models[0].Subject = "s" }},
		{"models[0].idle-timeout", func(o *node.Options) { o.Models[0].Idle = -1 }},
		{"models[0].allow[0]", func(o *node.Options) { o.Models[0].Allow = []string{"POST /v1/../admin"} }},
		{"models[0].allow", func(o *node.Options) {
			o.Models[0].URL, o.Models[0].Subject, o.Models[0].Allow = "", "s", []string{"POST"}
		}},
		{"models[0].concurrency", func(o *node.Options) { o.Models[0].Concurrency = -1 }},
		{"topics[0].name", func(o *node.Options) { o.Topics = []node.TopicOptions{{}} }},
		{"groups[0].topic", func(o *node.Options) { o.Groups = []node.GroupOptions{{Name: "g"}} }},
		{"groups[0].exclusive", func(o *node.Options) {
			o.Groups = []node.GroupOptions{{Name: "g", Topic: "t", Wildcard: true, Exclusive: true}}
		}},
	} {
		o := valid()
		c.change(&o)
		err := o.Validate()
		if !errors.Is(err, node.ErrOptions) {
			t.Errorf("%s: error is %v", c.key, err)
			continue
		}
		if !strings.Contains(err.Error(), " "+c.key+": ") {
			t.Errorf("%s: error %q does not name it", c.key, err)
		}
	}
}

func TestValidateTellsAllAtOnce(t *testing.T) {
	o := valid()
	o.Workers, o.Flush, o.GRPC = 0, "", ""
	err := o.Validate()
	for _, key := range []string{"workers", "flush", "grpc"} {
		if err == nil || !strings.Contains(err.Error(), key+": ") {
			t.Errorf("error %v does not name %s", err, key)
		}
	}
}

func TestOnlyPartsThatRunAreChecked(t *testing.T) {
	o := valid()
	o.Parts, o.Models, o.Keys, o.HTTP = node.Broker|node.Admin, nil, "", ""
	if err := o.Validate(); err != nil {
		t.Errorf("a broker needs no upstream, key or HTTP address: %v", err)
	}
}

func TestValidateHidesPasswords(t *testing.T) {
	o := valid()
	o.NATSURL = "nats://user:hunter2@%zz"
	o.Models[0].URL = "ftp://user:hunter2@h"
	if err := o.Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error is %v", err)
	}
}

func TestSizeReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := node.Size(rapid.Int64Range(0, math.MaxInt64).Draw(t, "size"))
		got, err := node.ParseSize(want.String())
		if err != nil || got != want {
			t.Fatalf("%d is %s, read back as %d, %v", int64(want), want, int64(got), err)
		}
	})
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]node.Size{
		"0B": 0, "512B": 512, "64KiB": 64 * node.KiB, "4 MiB": 4 * node.MiB, "1GiB": node.GiB, "8388607TiB": 8388607 * node.TiB,
	} {
		if got, err := node.ParseSize(text); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "MiB", "1.5MiB", "-1B", "1MB", "1m", "8388608TiB", "99999999999999999999B"} {
		if got, err := node.ParseSize(text); err == nil {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
}
