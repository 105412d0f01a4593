package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker/datadir"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/policy"
)

// Options configure a Broker. The zero value of a field takes its default.
type Options struct {
	// Dir is the data folder; the store lives in it. Required.
	Dir string
	// FS is the file system under the store; nil is the machine's.
	FS vfs.FS
	// AsyncFlush makes a send wait for the operating system only and not for the
	// disk, as RocketMQ does by default: kill -9 loses nothing, a power cut may.
	AsyncFlush bool
	// CacheBytes bounds the store's block cache. Default 128 MiB.
	CacheBytes int64
	// TailCacheBytes bounds, for each parent topic, the messages kept in memory
	// from their append until they are settled. Default 64 MiB.
	TailCacheBytes int64

	// Topics and Groups are those that have to exist. What is missing is created when
	// the broker opens; of what is there the settings given here win from then on.
	Topics []TopicConfig
	Groups []GroupConfig

	// AutoCreate creates an unknown parent topic at the first send or receive, and an
	// unknown group at the first receive or at the first lite topic that it subscribes to.
	AutoCreate bool
	// AutoTopic and AutoGroup are the settings such a topic or group gets; their
	// names and the group's topic are filled in.
	AutoTopic TopicConfig
	AutoGroup GroupConfig
	// MaxAutoTopics and MaxAutoGroups bound the topics and groups created on demand; further
	// ones are refused with ErrTopicNotFound and ErrGroupNotFound. Default 32.
	MaxAutoTopics, MaxAutoGroups int

	// MaxBodyBytes bounds a message body. Default DefaultMaxBodyBytes.
	MaxBodyBytes int
	// MaxEvents bounds the events that wait for an owner loop; more are refused
	// with ErrBusy. Default 65,536.
	MaxEvents int
	// MaxEventBytes bounds the bytes of sends that wait for an owner loop or for the disk, of
	// all parent topics together; further sends are refused with ErrBusy. Default 256 MiB.
	MaxEventBytes int64
	// MaxDeadLetters bounds the dead letters kept for a group; the oldest goes
	// first. Default 1,000,000.
	MaxDeadLetters int
	// DiskReserve is the space of the volume that is kept for acks, purges and recovery, in
	// bytes: with less free space, sends and redrives are refused with ErrDiskFull. It is at
	// most a quarter of the volume. 0 disables the reserve.
	DiskReserve int64
	// FreeSpace measures the volume. nil asks the machine's file system for Dir; with a
	// custom FS, nothing is measured.
	FreeSpace func() (datadir.Space, error)
	// SweepInterval is how often buckets past their TTL are looked for. Default 1 s.
	SweepInterval time.Duration

	// Policy is the policy in force from the start on; nil limits nothing. It counts from
	// before the first message is handed out. SetPolicy changes it.
	Policy *policy.Document
	// PolicyNotice, when set, returns one line when the policy in force differs from its
	// source, for example because the source has lost it; else the empty text. Explanations
	// show it. It must not block.
	PolicyNotice func() string

	// OnRelease, when set, is told of each delivery and of its end, for recording traces.
	// OnDiscard, when set, is told of messages that the broker settled by itself: purged,
	// expired, past their deadline, or dead letters that no consumer asked for.
	//
	// Both are called by one goroutine of the broker, one call at a time, in order. It
	// may block: what comes meanwhile waits in a queue of MaxNotices, and what finds
	// that full is dropped and counted in Metrics.NoticesDropped.
	OnRelease func(Released)
	OnDiscard func(Discarded)
	// MaxNotices bounds what waits for OnRelease and OnDiscard. Default 65,536.
	MaxNotices int

	// OnUnsubscribe, when set, is told that a client lost a lite topic to another
	// one (exclusive groups). It is called from the owner loop and must not block.
	OnUnsubscribe func(client, group, topic, name string)
	// Clock is the source of time; nil is the machine's clock.
	Clock Clock
	// Observer, when set, receives queue and commit times.
	Observer Observer
	// Logger receives what an operator should know; nil discards it.
	Logger *slog.Logger
}

// TopicConfig are the settings of a parent topic.
type TopicConfig struct {
	Name string
	// TTL is how long an idle bucket lives: RocketMQ's lite.topic.expiration.
	// 0 is for ever. At least 1 s.
	TTL time.Duration
	// ExpireBacklog lets the TTL remove a bucket that still holds messages, as
	// RocketMQ does.
	ExpireBacklog bool
	// MaxMessages and MaxBytes bound one bucket. Defaults 100,000 and 1 GiB.
	MaxMessages int
	MaxBytes    int64
	// MaxBuckets bounds the buckets under the topic. Default 10,000,000.
	MaxBuckets int
	// MaxWaiters bounds its parked polls. Default 100,000.
	MaxWaiters int
	// MaxSubscriptions bounds its exact lite subscriptions. Default 1,000,000.
	MaxSubscriptions int
	// MaxUserBuckets bounds the buckets of one user. Default 10,000. The count is never too
	// low; with ten million buckets it may be about 40 too high.
	MaxUserBuckets int
	// UnservedTTL is the TTL of an idle bucket none of whose messages was ever served, if it
	// is shorter than TTL. Default 15 minutes.
	UnservedTTL time.Duration
	// Auto: the topic was created on demand. Set by the broker.
	Auto bool
}

// GroupConfig are the settings of a consumer group.
type GroupConfig struct {
	Name string
	// Topic is the one parent topic that the group reads: RocketMQ's lite.bind.topic.
	Topic string
	// Wildcard makes every client of the group a reader of all buckets: lite.sub.wildcard.
	Wildcard bool
	// Exclusive gives a lite topic to the newest of its exact subscribers: lite.sub.model.
	Exclusive bool
	// InFlight is how many messages of one bucket may be out at once. Default 1: strict FIFO.
	InFlight int
	// MaxAttempts is how often a message is delivered before it is a dead letter. Default 17.
	MaxAttempts int
	// ClientQuota bounds the exact lite subscriptions of one client. Default 2,000.
	ClientQuota int
	// MaxSuspend bounds one suspend. Default 24 h.
	MaxSuspend time.Duration
	// StartLatest makes a new group skip what is in the buckets when it is created.
	StartLatest bool
	// Unlimited exempts the group from policies: only its own settings count.
	Unlimited bool
	// Retention is the time without a client, while the broker runs, after which the group is
	// removed with its positions, holds and dead letters, so that it keeps no more messages. 0 is
	// forever. At least 1 minute.
	Retention time.Duration
	// Auto: the group was created on demand. Set by the broker.
	Auto bool
}

// DefaultMaxBodyBytes leaves 64 KiB of 4 MiB for the fields that are delivered beside a body;
// a sender can set 16 KiB of them. So every message fits the 4 MiB that a gRPC client
// receives by default; a larger message could be delivered and never be received.
const DefaultMaxBodyBytes = 4<<20 - 64<<10

// Bounds that are the same for every topic and group.
const (
	minTTL             = time.Second
	maxTTL             = 30 * 24 * time.Hour // RocketMQ's 43,200 minutes
	maxInFlight        = 1024
	maxAttempts        = 1000
	maxSuspend         = 30 * 24 * time.Hour
	maxInvisible       = 12 * time.Hour
	maxTopics          = 1 << 12
	maxGroups          = 1 << 12
	minRetention       = time.Minute
	maxRetention       = 366 * 24 * time.Hour
	maxBatchMessages   = 1024
	maxMessagesPerPull = 1024
)

func (o Options) withDefaults() Options {
	setDefault(&o.CacheBytes, 128<<20)
	setDefault(&o.TailCacheBytes, 64<<20)
	setDefault(&o.MaxBodyBytes, DefaultMaxBodyBytes)
	setDefault(&o.MaxEvents, 65536)
	setDefault(&o.MaxEventBytes, 256<<20)
	setDefault(&o.MaxDeadLetters, 1_000_000)
	setDefault(&o.SweepInterval, time.Second)
	setDefault(&o.MaxNotices, 65536)
	setDefault(&o.MaxAutoTopics, 32)
	setDefault(&o.MaxAutoGroups, 32)
	o.Topics, o.Groups = slices.Clone(o.Topics), slices.Clone(o.Groups)
	for i := range o.Topics {
		o.Topics[i] = o.Topics[i].withDefaults()
	}
	for i := range o.Groups {
		o.Groups[i] = o.Groups[i].withDefaults()
	}
	if o.FreeSpace == nil && o.FS == nil {
		dir := o.Dir
		o.FreeSpace = func() (datadir.Space, error) { return datadir.FreeSpace(dir) }
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Clock == nil {
		o.Clock = systemClock()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// configured looks up the settings that the options give a topic or group, or else
// those that were stored.
func configured[T named](given []T, stored T) T {
	for _, c := range given {
		if c.name() == stored.name() {
			return c
		}
	}
	return stored
}

// named is a TopicConfig or a GroupConfig.
type named interface{ name() string }

func (c TopicConfig) name() string { return c.Name }
func (c GroupConfig) name() string { return c.Name }

func (o Options) validate() error {
	var errs []error
	for _, c := range o.Topics {
		errs = append(errs, c.Validate())
	}
	for _, c := range o.Groups {
		errs = append(errs, c.Validate())
	}
	if o.Dir == "" {
		errs = append(errs, fmt.Errorf("%w: data folder is empty", ErrInvalidArgument))
	}
	for _, f := range []struct {
		key string
		v   int64
	}{
		{"cache bytes", o.CacheBytes},
		{"tail cache bytes", o.TailCacheBytes},
		{"max body bytes", int64(o.MaxBodyBytes)},
		{"max events", int64(o.MaxEvents)},
		{"max event bytes", o.MaxEventBytes},
		{"max dead letters", int64(o.MaxDeadLetters)},
		{"sweep interval", int64(o.SweepInterval)},
		{"max notices", int64(o.MaxNotices)},
		{"max auto topics", int64(o.MaxAutoTopics)},
		{"max auto groups", int64(o.MaxAutoGroups)},
	} {
		errs = append(errs, inRange(f.key, f.v, 1<<50))
	}
	if o.DiskReserve < 0 {
		errs = append(errs, fmt.Errorf("%w: disk reserve %d is negative", ErrInvalidArgument, o.DiskReserve))
	}
	return errors.Join(errs...)
}

func (c TopicConfig) withDefaults() TopicConfig {
	setDefault(&c.MaxMessages, 100_000)
	setDefault(&c.MaxBytes, 1<<30)
	setDefault(&c.MaxBuckets, 10_000_000)
	setDefault(&c.MaxWaiters, 100_000)
	setDefault(&c.MaxSubscriptions, 1_000_000)
	setDefault(&c.MaxUserBuckets, 10_000)
	setDefault(&c.UnservedTTL, 15*time.Minute)
	return c
}

// Validate names every field that is out of its limits.
func (c TopicConfig) Validate() error {
	errs := []error{
		lite.CheckTopic(c.Name),
		inRange("max messages", int64(c.MaxMessages), 1<<31),
		inRange("max bytes", c.MaxBytes, 1<<50),
		inRange("max buckets", int64(c.MaxBuckets), 1<<40),
		inRange("max waiters", int64(c.MaxWaiters), 1<<31),
		inRange("max subscriptions", int64(c.MaxSubscriptions), 1<<31),
		inRange("max user buckets", int64(c.MaxUserBuckets), 1<<31),
		durationInRange("unserved ttl", c.UnservedTTL, minTTL, maxTTL),
	}
	if c.TTL != 0 && (c.TTL < minTTL || c.TTL > maxTTL) {
		errs = append(errs, fmt.Errorf("%w: ttl %v is outside %v to %v (0: for ever)", ErrInvalidArgument, c.TTL, minTTL, maxTTL))
	}
	return errors.Join(errs...)
}

func (c GroupConfig) withDefaults() GroupConfig {
	setDefault(&c.InFlight, 1)
	setDefault(&c.MaxAttempts, 17)
	setDefault(&c.ClientQuota, 2000)
	setDefault(&c.MaxSuspend, 24*time.Hour)
	return c
}

// Validate names every field that is out of its limits.
func (c GroupConfig) Validate() error {
	var retention error
	if c.Retention != 0 {
		retention = durationInRange("retention (0: for ever)", c.Retention, minRetention, maxRetention)
	}
	return errors.Join(
		retention,
		lite.CheckGroup(c.Name),
		lite.CheckTopic(c.Topic),
		inRange("in flight", int64(c.InFlight), maxInFlight),
		inRange("max attempts", int64(c.MaxAttempts), maxAttempts),
		inRange("client quota", int64(c.ClientQuota), 1<<31),
		durationInRange("max suspend", c.MaxSuspend, time.Millisecond, maxSuspend),
	)
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// inRange refuses what is not 1 to most.
func inRange(field string, v, most int64) error {
	if v < 1 || v > most {
		return fmt.Errorf("%w: %s %d is outside 1 to %d", ErrInvalidArgument, field, v, most)
	}
	return nil
}

func durationInRange(field string, d, lo, hi time.Duration) error {
	if d < lo || d > hi {
		return fmt.Errorf("%w: %s %v is outside %v to %v", ErrInvalidArgument, field, d, lo, hi)
	}
	return nil
}
