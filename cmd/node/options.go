package node

import (
	"log/slog"
	"time"

	"github.com/penstockmq/penstock/consumer/forward"
)

// Parts says what runs in this process.
type Parts uint8

// The parts; several are or-ed together.
const (
	Broker  Parts = 1 << iota // the broker with its gRPC server
	NATS                      // an embedded NATS server
	Gateway                   // the HTTP front
	Pool                      // the consumer pool
	Admin                     // operations API, metrics, health

	// Whole is everything on one machine.
	Whole = Broker | NATS | Gateway | Pool | Admin
)

// Has says whether all of q are among p.
func (p Parts) Has(q Parts) bool { return p&q == q }

// Options are the configuration of a process. The mapstructure tag of a field is its
// key in penstock.yaml, its flag (--key) and, upper case with PENSTOCK_ before it and
// _ for -, its environment variable. [Defaults] has the defaults; the zero Options
// are not valid.
type Options struct {
	// Parts is chosen by the command, not by configuration.
	Parts Parts `mapstructure:"-"`

	// Data is the folder of the store, of JetStream and of generated keys.
	Data string `mapstructure:"data"`
	// GRPC, HTTP, Admin and NATS are where the parts listen, HOST:PORT; port 0 picks
	// a free one.
	GRPC  string `mapstructure:"grpc"`
	HTTP  string `mapstructure:"http"`
	Admin string `mapstructure:"admin"`
	NATS  string `mapstructure:"nats"`
	// AdminHosts are the additional names by which browsers may reach the admin port, beside
	// addresses and localhost.
	AdminHosts []string `mapstructure:"admin-hosts"`
	// NATSURL is a NATS server outside of this process; the embedded one is then not
	// started. Empty: the embedded one, or in a process without it, the one at NATS.
	NATSURL string `mapstructure:"nats-url"`
	// Broker is the gRPC endpoint of a broker outside of this process, HOST:PORT.
	// Empty: the one of this process, or in a process without it, the one at GRPC.
	Broker string `mapstructure:"broker"`
	// BrokerTLS speaks TLS to Broker.
	BrokerTLS bool `mapstructure:"broker-tls"`
	// TLSCert and TLSKey are PEM files for TLS on the gRPC port; it then serves TLS
	// and plaintext. Empty: plaintext only.
	TLSCert string `mapstructure:"tls-cert"`
	TLSKey  string `mapstructure:"tls-key"`

	// AutoCreate creates an unknown parent topic at the first send or receive, and an unknown
	// group at the first receive.
	AutoCreate bool `mapstructure:"auto-create"`
	// MaxAutoTopics and MaxAutoGroups bound the parent topics and groups that were created by
	// AutoCreate.
	MaxAutoTopics int `mapstructure:"max-auto-topics"`
	MaxAutoGroups int `mapstructure:"max-auto-groups"`
	// GroupRetention is the time without a consumer, while the broker runs, after which a group
	// created by AutoCreate is removed, so that it keeps no more messages. 0 is forever.
	GroupRetention time.Duration `mapstructure:"group-retention"`
	// Topic and Group are where the gateway writes and the pool reads. A broker
	// creates both at start.
	Topic string `mapstructure:"topic"`
	Group string `mapstructure:"group"`
	// TTL is how long an idle bucket of Topic, or of a topic made on demand, lives.
	// 0 is for ever.
	TTL time.Duration `mapstructure:"ttl"`
	// UnservedTTL is the TTL of an idle bucket none of whose messages was served, if it is
	// shorter than the normal TTL.
	UnservedTTL time.Duration `mapstructure:"unserved-ttl"`
	// MaxUserBuckets bounds the buckets of one user in a parent topic.
	MaxUserBuckets int `mapstructure:"max-user-buckets"`
	// InFlight is how many messages of one bucket Group may have out at once; 1 is
	// strict order.
	InFlight int `mapstructure:"in-flight"`
	// MaxAttempts is how often a message is delivered before it is a dead letter,
	// whatever became of its consumers; compare Attempts.
	MaxAttempts int `mapstructure:"max-attempts"`
	// MaxSuspend bounds one suspend.
	MaxSuspend time.Duration `mapstructure:"max-suspend"`
	// Topics and Groups are further ones that a broker creates at start. For those
	// that exist already the settings given here are in force from then on.
	Topics []TopicOptions `mapstructure:"topics"`
	Groups []GroupOptions `mapstructure:"groups"`

	// Flush is FlushFsync or FlushAsync: what an accepted send survives.
	Flush string `mapstructure:"flush"`
	// DiskReserve is the space on the volume of Data that is kept for acks, purges and a start:
	// with less free space, new messages are refused. Half of it is reserved by a file that a
	// start on a full volume removes. It is at most a quarter of the volume; 0 disables it.
	DiskReserve Size `mapstructure:"disk-reserve"`
	// Cache bounds the store's block cache.
	Cache Size `mapstructure:"cache"`
	// MaxBody bounds the body of a request and of a message. Above 4,032 KiB a RocketMQ consumer
	// needs a higher receive limit than gRPC's 4 MiB.
	MaxBody Size `mapstructure:"max-body"`

	// Policy is the limits, a file or a directory of files. Empty: what penstock policy
	// apply put in force, which is kept in NATS.
	Policy string `mapstructure:"policy"`
	// Keys is the file of the users' API keys (hashed).
	Keys string `mapstructure:"keys"`
	// AlarmTokenEnv names the environment variable that holds the token which who posts
	// alarms to the admin port has to show. AlarmToken is its value, which the command
	// reads; it is never printed. Empty: no token is asked for.
	AlarmTokenEnv string `mapstructure:"alarm-token-env"`
	AlarmToken    Key    `mapstructure:"-"`
	// SNSTopics are the ARNs of Amazon SNS whose alarms are taken. None: SNS is refused.
	SNSTopics []string `mapstructure:"sns-topics"`

	// RequestTimeout is how long a caller waits that names no time, AsyncTimeout how
	// long an asynchronous request may take; MaxTimeout bounds what a caller may name.
	RequestTimeout time.Duration `mapstructure:"request-timeout"`
	AsyncTimeout   time.Duration `mapstructure:"async-timeout"`
	MaxTimeout     time.Duration `mapstructure:"max-timeout"`
	// AsyncTTL is the time for which an asynchronous request and its result are kept after their
	// last change. It is at least MaxTimeout.
	AsyncTTL time.Duration `mapstructure:"async-ttl"`
	// AsyncBytes is the disk space in NATS for the records of asynchronous requests, and again
	// for their large results. 0 is 1 GiB, or less on a smaller volume.
	AsyncBytes Size `mapstructure:"async-bytes"`
	// AsyncUserRecords and AsyncUserBytes bound the stored requests of one user. 0 means no
	// bound of the records, and half of the space.
	AsyncUserRecords int  `mapstructure:"async-user-records"`
	AsyncUserBytes   Size `mapstructure:"async-user-bytes"`
	// KeepAlive is the time between comments on a stream whose request is queued.
	KeepAlive time.Duration `mapstructure:"keep-alive"`
	// WriteTimeout is the time without reading after which a caller's connection is cut and its
	// request cancelled.
	WriteTimeout time.Duration `mapstructure:"write-timeout"`

	// Workers is the number of requests that the pool runs at once. An idle worker costs
	// nothing; a running request costs its connection and about 90 KiB.
	Workers int `mapstructure:"workers"`
	// Share is the largest part of Workers, in percent, that the requests of one model or of one
	// user may hold while no other requests run. 100 disables it.
	Share int `mapstructure:"share"`
	// Adapter is AdapterStubs or AdapterOfficial: how pool and gateway speak to the
	// broker.
	Adapter string `mapstructure:"adapter"`
	// Invisible is the lease of a running request; it is renewed while the request
	// runs, so this is how long a request of a dead pool stays hidden.
	Invisible time.Duration `mapstructure:"invisible"`
	// Attempts is how often the pool tries a request that fails at its model, with
	// BackoffMin before the second attempt, doubling up to BackoffMax.
	Attempts   int           `mapstructure:"attempts"`
	BackoffMin time.Duration `mapstructure:"backoff-min"`
	BackoffMax time.Duration `mapstructure:"backoff-max"`
	// Grace is how long running requests may take to finish at stop.
	Grace time.Duration `mapstructure:"grace"`
	// Models says where requests go, by model; the name "*" takes every other model.
	Models []ModelOptions `mapstructure:"models"`

	// StopNow ends the Grace of a stopping node when it is closed: running requests and the node
	// then end with an error. Nil: the Grace always runs to its end.
	StopNow <-chan struct{} `mapstructure:"-"`
	// Version is told by metrics.
	Version string `mapstructure:"-"`
	// Logger receives what an operator should know; nil discards it.
	Logger *slog.Logger `mapstructure:"-"`
}

// TopicOptions are the settings of a further parent topic.
type TopicOptions struct {
	Name          string        `mapstructure:"name"`
	TTL           time.Duration `mapstructure:"ttl"`
	ExpireBacklog bool          `mapstructure:"expire-backlog"`
	MaxMessages   int           `mapstructure:"max-messages"`
	MaxBytes      Size          `mapstructure:"max-bytes"`
	MaxBuckets    int           `mapstructure:"max-buckets"`
}

// GroupOptions are the settings of a further consumer group.
type GroupOptions struct {
	Name        string        `mapstructure:"name"`
	Topic       string        `mapstructure:"topic"`
	Wildcard    bool          `mapstructure:"wildcard"`
	Exclusive   bool          `mapstructure:"exclusive"`
	InFlight    int           `mapstructure:"in-flight"`
	MaxAttempts int           `mapstructure:"max-attempts"`
	MaxSuspend  time.Duration `mapstructure:"max-suspend"`
	StartLatest bool          `mapstructure:"start-latest"`
	// Retention is GroupRetention for this group; 0 is forever.
	Retention time.Duration `mapstructure:"retention"`
}

// ModelOptions say where the requests of one model go: exactly one of URL, Subject
// and Topic is set.
type ModelOptions struct {
	// Name is the model, or "*" for all that have no entry of their own.
	Name string `mapstructure:"name"`
	// URL is an OpenAI-compatible server's base as SDKs take it, such as
	// https://models.example/v1.
	URL string `mapstructure:"url"`
	// Subject is a NATS subject whose subscribers answer.
	Subject string `mapstructure:"subject"`
	// Topic is a RocketMQ topic of the broker that takes the request.
	Topic string `mapstructure:"topic"`
	// KeyEnv names the environment variable that holds the server's API key. Key is
	// its value, which the command reads; it is never printed.
	KeyEnv string `mapstructure:"key-env"`
	Key    Key    `mapstructure:"-"`
	// UserHeader, if set, carries the user to the server.
	UserHeader string `mapstructure:"user-header"`
	// Allow lists the permitted requests to the server at URL, each "METHOD PATH", such as
	// "POST /v1/responses", or "METHOD" for requests without a path. It replaces the default,
	// forward.DefaultAllow: the requests that a gateway sends. A message with any other request
	// becomes a dead letter.
	Allow []string `mapstructure:"allow"`
	// Connect bounds the connection's set-up, FirstByte the wait for the answer, Idle
	// the silence within it, Total all of it. 0 takes the default of package forward.
	Connect   time.Duration `mapstructure:"connect-timeout"`
	FirstByte time.Duration `mapstructure:"first-byte-timeout"`
	Idle      time.Duration `mapstructure:"idle-timeout"`
	Total     time.Duration `mapstructure:"total-timeout"`
	// Concurrency bounds the requests that run there at once, in each pool; 0 is no
	// bound beside Workers. It is for brokers that do not ask the limits, such as
	// RocketMQ's: with Penstock's, a column's in_flight in the policy bounds all pools
	// together, and a pool that has a Concurrency logs that it is not used.
	Concurrency int `mapstructure:"concurrency"`
}

// Key is an API key of an upstream; it prints as "***".
type Key = forward.Key

// The values of Options.Flush.
const (
	FlushFsync = "fsync" // an accepted send survives a power cut
	FlushAsync = "async" // it survives kill -9 only
)

// The values of Options.Adapter.
const (
	AdapterStubs    = "stubs"    // Penstock's own client: batches, suspends from 1 ms
	AdapterOfficial = "official" // the official RocketMQ client; see mq.SetUpOfficial
)

// Wildcard is the name of the entry in Options.Models for all other models.
const Wildcard = "*"

// Defaults are the options of a process that was told nothing.
func Defaults() Options {
	return Options{
		Data:           "penstock-data",
		GRPC:           "127.0.0.1:8081",
		HTTP:           "127.0.0.1:8080",
		Admin:          "127.0.0.1:8082",
		NATS:           "127.0.0.1:4222",
		Topic:          "requests",
		Group:          "pool",
		TTL:            24 * time.Hour,
		UnservedTTL:    15 * time.Minute,
		MaxUserBuckets: 10_000,
		MaxAutoTopics:  32,
		MaxAutoGroups:  32,
		GroupRetention: 72 * time.Hour,
		InFlight:       1,
		MaxAttempts:    17,
		MaxSuspend:     24 * time.Hour,
		Flush:          FlushFsync,
		DiskReserve:    256 * MiB,
		Cache:          128 * MiB,
		MaxBody:        4*MiB - 64*KiB,
		RequestTimeout: 10 * time.Minute,
		AsyncTimeout:   time.Hour,
		MaxTimeout:     24 * time.Hour,
		AsyncTTL:       24 * time.Hour,
		KeepAlive:      15 * time.Second,
		WriteTimeout:   30 * time.Second,
		Workers:        4096,
		Share:          50,
		Adapter:        AdapterStubs,
		Invisible:      30 * time.Second,
		Attempts:       3,
		BackoffMin:     200 * time.Millisecond,
		BackoffMax:     30 * time.Second,
		Grace:          10 * time.Second,
	}
}
