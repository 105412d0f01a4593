package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/penstockmq/penstock/cmd/node"
)

// Keys that are the command's own; all others are fields of node.Options.
const (
	keyConfig    = "config"
	keyLogLevel  = "log-level"
	keyLogFormat = "log-format"
	keyModel     = "model"
	keyKeyEnv    = "key-env"
)

// addServerFlags gives a command the flags that every server has, so that scripts can
// pass them without knowing which of them a command needs, and then those of its
// parts. The defaults shown are those of def; the flag's own value counts only when
// it was given.
func addServerFlags(fs *pflag.FlagSet, def node.Options) {
	fs.String(keyConfig, "", "configuration `file` (default penstock.yaml in the current folder, if there)")
	fs.String(keyLogLevel, "info", "debug, info, warn or error")
	fs.String(keyLogFormat, "text", "text or json; logs go to standard error")
	fs.String("data", def.Data, "data `folder`")
	fs.String("grpc", def.GRPC, "broker's gRPC `address`; port 0 picks a free one")
	fs.String("http", def.HTTP, "gateway's HTTP `address`")
	fs.String("admin", def.Admin, "`address` of operations API, metrics and health")
	fs.StringSlice("admin-hosts", def.AdminHosts, "`names` by which browsers may reach the admin port, in addition to addresses and localhost")
	fs.String("nats", def.NATS, "`address` of the NATS server")
	fs.String("nats-url", def.NATSURL, "`URL` of a NATS server outside, in place of the embedded one")
	fs.Bool("auto-create", def.AutoCreate, "create unknown parent topics at the first send or receive, unknown groups at the first receive")
	fs.String("topic", def.Topic, "parent topic of requests")
	fs.String("group", def.Group, "consumer group of the pool")
	fs.String("policy", def.Policy, "policy `file` or directory (default what policy apply put in force)")
	fs.String("alarm-token-env", def.AlarmTokenEnv, "environment `variable` with the token for posting alarms")
	fs.StringSlice("sns-topics", def.SNSTopics, "`ARNs` of SNS topics whose alarms are taken")
	fs.Duration("grace", def.Grace, "how long running requests may take to finish at stop")
}

func addBrokerFlags(fs *pflag.FlagSet, def node.Options) {
	fs.String("flush", def.Flush, "fsync: an accepted send survives a power cut; async: only kill -9")
	fs.String("disk-reserve", def.DiskReserve.String(), "free space on the volume of --data below which new messages are refused; 0B disables it")
	fs.String("cache", def.Cache.String(), "store's block cache")
	fs.Duration("ttl", def.TTL, "how long an idle bucket lives; 0 is for ever")
	fs.Duration("unserved-ttl", def.UnservedTTL, "time to live of an idle bucket none of whose messages was served")
	fs.Int("max-user-buckets", def.MaxUserBuckets, "maximum number of buckets of one user")
	fs.Int("max-auto-topics", def.MaxAutoTopics, "maximum number of parent topics created by --auto-create")
	fs.Int("max-auto-groups", def.MaxAutoGroups, "maximum number of groups created by --auto-create")
	fs.Duration("group-retention", def.GroupRetention, "time without a consumer after which a group created by --auto-create is removed; 0 is forever")
	fs.Int("in-flight", def.InFlight, "messages of one bucket that may be out at once; 1 is strict order")
	fs.Int("max-attempts", def.MaxAttempts, "deliveries before a message is a dead letter")
	fs.Duration("max-suspend", def.MaxSuspend, "longest suspend")
	fs.String("tls-cert", def.TLSCert, "PEM `file` for TLS on the gRPC port, beside plaintext")
	fs.String("tls-key", def.TLSKey, "PEM `file` of its key")
}

func addClientFlags(fs *pflag.FlagSet, def node.Options) {
	fs.String("broker", def.Broker, "gRPC `address` of the broker (default the value of --grpc)")
	fs.Bool("broker-tls", def.BrokerTLS, "speak TLS to the broker")
}

func addGatewayFlags(fs *pflag.FlagSet, def node.Options) {
	fs.String("keys", def.Keys, "`file` of API keys")
	fs.Duration("request-timeout", def.RequestTimeout, "how long a caller waits that names no time")
	fs.Duration("async-timeout", def.AsyncTimeout, "how long an asynchronous request may take")
	fs.Duration("max-timeout", def.MaxTimeout, "the longest a caller may name")
	fs.Duration("async-ttl", def.AsyncTTL, "time for which an asynchronous request and its result are kept; at least max-timeout")
	fs.String("async-bytes", def.AsyncBytes.String(), "disk space for records of asynchronous requests, and again for their large results; 0 is 1GiB, or less on a small volume")
	fs.Int("async-user-records", def.AsyncUserRecords, "maximum number of stored asynchronous requests of one user; 0 is no bound")
	fs.String("async-user-bytes", def.AsyncUserBytes.String(), "maximum size of the stored asynchronous requests of one user; 0 is half of the space")
	fs.Duration("keep-alive", def.KeepAlive, "between comments on a stream whose request is queued")
	fs.Duration("write-timeout", def.WriteTimeout, "time without reading after which a caller is cut")
}

func addPoolFlags(fs *pflag.FlagSet, def node.Options) {
	fs.Int("workers", def.Workers, "requests that run at once")
	fs.Int("share", def.Share, "largest `percent` of the workers that one model or one user may hold")
	fs.Int("attempts", def.Attempts, "attempts at a request that fails at its model")
	fs.Duration("invisible", def.Invisible, "lease of a running request; it is renewed")
}

// addModelFlags: models are a list in the file, and NAME=URL pairs on the command line.
func addModelFlags(fs *pflag.FlagSet) {
	fs.StringArray(keyModel, nil, "an upstream as `NAME=URL`, or *=URL for all models; may be repeated")
	fs.String(keyKeyEnv, "", "environment `variable` that holds the API key of the --model upstreams")
}

func addSharedFlags(fs *pflag.FlagSet, def node.Options) {
	fs.String("adapter", def.Adapter, "client of the broker: stubs (Penstock's own) or official (RocketMQ's)")
	fs.String("max-body", def.MaxBody.String(), "largest body of a request; above 4032KiB RocketMQ consumers need a higher gRPC receive limit than the default")
}

// upDefaults are those of one machine that runs everything.
func upDefaults() node.Options {
	o := node.Defaults()
	o.AutoCreate = true
	o.InFlight = 4
	return o
}

// modelArgument reads one --model.
func modelArgument(text string) (node.ModelOptions, error) {
	name, url, ok := strings.Cut(text, "=")
	if ok && name != "" {
		return node.ModelOptions{Name: name, URL: url}, nil
	}
	return node.ModelOptions{}, fmt.Errorf("%w: %s: %q: want NAME=URL", node.ErrOptions, keyModel, text)
}
