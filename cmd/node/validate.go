package node

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
)

// ErrOptions is wrapped by every fault of an [Options].
var ErrOptions = errors.New("invalid configuration")

// faults collects what is wrong, each with its key.
type faults []error

func (f *faults) add(key, format string, args ...any) {
	*f = append(*f, fmt.Errorf("%w: %s: %s", ErrOptions, key, fmt.Sprintf(format, args...)))
}

// check adds an error of another package under a key.
func (f *faults) check(key string, err error) {
	if err != nil {
		*f = append(*f, fmt.Errorf("%w: %s: %w", ErrOptions, key, err))
	}
}

func within[T cmp.Ordered](f *faults, key string, v, lo, hi T) {
	if v < lo || v > hi {
		f.add(key, "%v is outside %v to %v", v, lo, hi)
	}
}

// Bounds of single settings. The parts check theirs again; these are here so that all
// faults of a configuration are told at once, by key.
const (
	maxTTL      = 30 * 24 * time.Hour
	maxWorkers  = mq.MaxWorkers
	maxDuration = 30 * 24 * time.Hour
	// maxRetention is the longest that a group may be without a consumer: a year.
	maxRetention = 366 * 24 * time.Hour
)

// Validate returns all faults joined, each naming its key.
func (o Options) Validate() error {
	var f faults
	if o.Data == "" && o.Parts&(Broker|NATS) != 0 {
		f.add("data", "is empty")
	}
	o.validateAddresses(&f)
	f.check("topic", lite.CheckTopic(o.Topic))
	f.check("group", lite.CheckGroup(o.Group))
	ttl(&f, "ttl", o.TTL)
	within(&f, "unserved-ttl", o.UnservedTTL, time.Second, maxTTL)
	within(&f, "max-user-buckets", o.MaxUserBuckets, 1, 1<<31)
	within(&f, "max-auto-topics", o.MaxAutoTopics, 1, 4096)
	within(&f, "max-auto-groups", o.MaxAutoGroups, 1, 4096)
	retention(&f, "group-retention", o.GroupRetention)
	within(&f, "in-flight", o.InFlight, 1, 1024)
	within(&f, "max-attempts", o.MaxAttempts, 1, 1000)
	within(&f, "max-suspend", o.MaxSuspend, time.Millisecond, maxDuration)
	oneOf(&f, "flush", o.Flush, FlushFsync, FlushAsync)
	oneOf(&f, "adapter", o.Adapter, AdapterStubs, AdapterOfficial)
	within(&f, "disk-reserve", o.DiskReserve, 0, TiB)
	within(&f, "cache", o.Cache, MiB, TiB)
	within(&f, "max-body", o.MaxBody, KiB, 64*MiB)
	within(&f, "request-timeout", o.RequestTimeout, time.Millisecond, maxDuration)
	within(&f, "async-timeout", o.AsyncTimeout, time.Millisecond, maxDuration)
	within(&f, "max-timeout", o.MaxTimeout, time.Millisecond, maxDuration)
	if o.RequestTimeout > o.MaxTimeout {
		f.add("request-timeout", "%v is over max-timeout %v", o.RequestTimeout, o.MaxTimeout)
	}
	if o.AsyncTimeout > o.MaxTimeout {
		f.add("async-timeout", "%v is over max-timeout %v", o.AsyncTimeout, o.MaxTimeout)
	}
	within(&f, "async-ttl", o.AsyncTTL, time.Minute, maxDuration)
	if o.AsyncTTL < o.MaxTimeout {
		f.add("async-ttl", "%v is under max-timeout %v: the record of a waiting request would be gone before its deadline", o.AsyncTTL, o.MaxTimeout)
	}
	if o.AsyncBytes != 0 {
		within(&f, "async-bytes", o.AsyncBytes, MiB, TiB)
	}
	within(&f, "async-user-records", o.AsyncUserRecords, 0, 1<<31)
	within(&f, "async-user-bytes", o.AsyncUserBytes, 0, TiB)
	within(&f, "keep-alive", o.KeepAlive, 100*time.Millisecond, time.Hour)
	within(&f, "write-timeout", o.WriteTimeout, time.Second, time.Hour)
	within(&f, "workers", o.Workers, 1, maxWorkers)
	within(&f, "share", o.Share, 1, 100)
	within(&f, "invisible", o.Invisible, time.Second, 12*time.Hour)
	within(&f, "attempts", o.Attempts, 1, 1000)
	within(&f, "backoff-min", o.BackoffMin, time.Millisecond, time.Hour)
	within(&f, "backoff-max", o.BackoffMax, o.BackoffMin, time.Hour)
	within(&f, "grace", o.Grace, 0, time.Hour)
	for i, t := range o.Topics {
		t.validate(&f, fmt.Sprintf("topics[%d]", i))
	}
	for i, g := range o.Groups {
		g.validate(&f, fmt.Sprintf("groups[%d]", i))
	}
	o.validateModels(&f)
	if o.Parts.Has(Gateway) && o.Keys == "" {
		f.add("keys", "is empty: nobody could be let in; make a key with penstock keys create")
	}
	return errors.Join(f...)
}

func (o Options) validateAddresses(f *faults) {
	for _, a := range []struct {
		key, addr string
		used      bool
	}{
		{"grpc", o.GRPC, o.Parts.Has(Broker)},
		{"http", o.HTTP, o.Parts.Has(Gateway)},
		{"admin", o.Admin, o.Parts.Has(Admin)},
		{"nats", o.NATS, o.Parts.Has(NATS) && o.NATSURL == ""},
		{"broker", o.Broker, o.Broker != ""},
	} {
		if a.used {
			f.check(a.key, checkAddress(a.addr))
		}
	}
	for i, host := range o.AdminHosts {
		if _, _, err := net.SplitHostPort(host); host == "" || err == nil {
			f.add(fmt.Sprintf("admin-hosts[%d]", i), "%q: want a name without a port", host)
		}
	}
	if o.NATSURL != "" {
		// The parser's own text would repeat a password.
		if u, err := url.Parse(o.NATSURL); err != nil || u.Host == "" {
			f.add("nats-url", "want nats://HOST:PORT or tls://HOST:PORT")
		}
	}
	if o.Parts.Has(Broker) && o.Broker != "" {
		f.add("broker", "names another broker, but this process runs one")
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		f.add("tls-cert", "tls-cert and tls-key go together")
	}
}

func checkAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q: want HOST:PORT", addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: port %q is outside 0 to 65535", addr, port)
	}
	return nil
}

func ttl(f *faults, key string, v time.Duration) {
	if v != 0 && (v < time.Second || v > maxTTL) {
		f.add(key, "%v is outside %v to %v (0: for ever)", v, time.Second, maxTTL)
	}
}

func retention(f *faults, key string, v time.Duration) {
	if v != 0 && (v < time.Minute || v > maxRetention) {
		f.add(key, "%v is outside %v to %v (0: for ever)", v, time.Minute, maxRetention)
	}
}

func oneOf(f *faults, key, v string, values ...string) {
	if !slices.Contains(values, v) {
		f.add(key, "%q: want one of %q", v, values)
	}
}

func (t TopicOptions) validate(f *faults, key string) {
	f.check(key+".name", lite.CheckTopic(t.Name))
	ttl(f, key+".ttl", t.TTL)
	within(f, key+".max-messages", t.MaxMessages, 0, 1<<31)
	within(f, key+".max-bytes", t.MaxBytes, 0, 1<<50)
	within(f, key+".max-buckets", t.MaxBuckets, 0, 1<<40)
}

func (g GroupOptions) validate(f *faults, key string) {
	f.check(key+".name", lite.CheckGroup(g.Name))
	f.check(key+".topic", lite.CheckTopic(g.Topic))
	within(f, key+".in-flight", g.InFlight, 0, 1024)
	within(f, key+".max-attempts", g.MaxAttempts, 0, 1000)
	within(f, key+".max-suspend", g.MaxSuspend, 0, maxDuration)
	retention(f, key+".retention", g.Retention)
	if g.Wildcard && g.Exclusive {
		f.add(key+".exclusive", "a wildcard group cannot be exclusive")
	}
}

func (o Options) validateModels(f *faults) {
	seen := map[string]bool{}
	for i, m := range o.Models {
		key := fmt.Sprintf("models[%d]", i)
		m.validate(f, key)
		if seen[m.Name] {
			f.add(key+".name", "%q is there twice", m.Name)
		}
		seen[m.Name] = true
	}
	if len(o.Models) == 0 && o.Parts.Has(Pool) {
		f.add("models", "is empty: nothing could be forwarded; "+
			"name an upstream with --model NAME=URL or in penstock.yaml, or try penstock up --mock")
	}
}

func (m ModelOptions) validate(f *faults, key string) {
	if m.Name != Wildcard {
		f.check(key+".name", lite.CheckModel(m.Name))
	}
	kinds := 0
	for _, v := range []string{m.URL, m.Subject, m.Topic} {
		if v != "" {
			kinds++
		}
	}
	if kinds != 1 {
		f.add(key, "want exactly one of url, subject, topic")
	}
	if m.URL != "" {
		u, err := url.Parse(m.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			f.add(key+".url", "want http://HOST or https://HOST with a path such as /v1")
		}
	}
	for i, entry := range m.Allow {
		f.check(fmt.Sprintf("%s.allow[%d]", key, i), forward.CheckAllow(entry))
	}
	if len(m.Allow) > 0 && m.URL == "" {
		f.add(key+".allow", "is for models with a url")
	}
	if m.Topic != "" {
		f.check(key+".topic", lite.CheckTopic(m.Topic))
	}
	within(f, key+".connect-timeout", m.Connect, 0, maxDuration)
	within(f, key+".first-byte-timeout", m.FirstByte, 0, maxDuration)
	within(f, key+".idle-timeout", m.Idle, 0, maxDuration)
	within(f, key+".total-timeout", m.Total, 0, maxDuration)
	within(f, key+".concurrency", m.Concurrency, 0, maxWorkers)
}
