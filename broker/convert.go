package broker

import (
	"time"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/store"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// The machine and the store know nothing of each other; what passes between them
// is translated here, both directions of a type side by side.

func bucketState(r store.Bucket) dispatch.BucketState {
	s := dispatch.BucketState{
		ID: dispatch.BucketID(r.ID), Name: r.Name, Cell: r.Cell,
		Head: dispatch.Offset(r.Head), Tail: dispatch.Offset(r.Tail), Bytes: r.Bytes,
		Created: r.Created, LastActive: r.LastActive, Expiry: r.Expiry,
		Served: r.Served,
	}
	s.SetLevelByte(r.Level)
	return s
}

func bucketRecord(s *dispatch.BucketState) *store.Bucket {
	return &store.Bucket{
		ID: uint64(s.ID), Name: s.Name, Cell: s.Cell, Level: s.LevelByte(),
		Head: uint64(s.Head), Tail: uint64(s.Tail), Bytes: s.Bytes,
		Created: s.Created, LastActive: s.LastActive, Expiry: s.Expiry,
		Served: s.Served,
	}
}

func cursorState(r store.Cursor) dispatch.CursorState {
	s := dispatch.CursorState{Bucket: dispatch.BucketID(r.Bucket), Floor: dispatch.Offset(r.Floor)}
	for _, off := range r.Settled {
		s.Settled = append(s.Settled, dispatch.Offset(off))
	}
	for _, ret := range r.Returned {
		s.Returned = append(s.Returned, dispatch.Return{Offset: dispatch.Offset(ret.Offset), Attempts: ret.Attempts})
	}
	return s
}

func cursorRecord(g dispatch.GroupID, s *dispatch.CursorState) *store.Cursor {
	r := &store.Cursor{Group: uint32(g), Bucket: uint64(s.Bucket), Floor: uint64(s.Floor)}
	for _, off := range s.Settled {
		r.Settled = append(r.Settled, uint64(off))
	}
	for _, ret := range s.Returned {
		r.Returned = append(r.Returned, store.Return{Offset: uint64(ret.Offset), Attempts: ret.Attempts})
	}
	return r
}

func deadState(r store.Dead) dispatch.DeadState {
	return dispatch.DeadState{Bucket: dispatch.BucketID(r.Bucket), Start: dispatch.Offset(r.Start), Page: r.Page}
}

func deadRecord(s *dispatch.DeadState) *store.Dead {
	return &store.Dead{Bucket: uint64(s.Bucket), Start: uint64(s.Start), Page: s.Page}
}

func leaseState(r store.Lease) dispatch.LeaseState {
	return dispatch.LeaseState{
		Group: dispatch.GroupID(r.Group), Bucket: dispatch.BucketID(r.Bucket), Offset: dispatch.Offset(r.Offset),
		Until: r.Until, First: r.First, Attempt: r.Attempt, Token: dispatch.Token(r.Token),
		Client: r.Client, AutoRenew: r.AutoRenew, Ticket: r.Ticket,
	}
}

func leaseRecord(s *dispatch.LeaseState) *store.Lease {
	return &store.Lease{
		Group: uint32(s.Group), Bucket: uint64(s.Bucket), Offset: uint64(s.Offset),
		Until: s.Until, First: s.First, Attempt: s.Attempt, Token: uint64(s.Token),
		Client: s.Client, AutoRenew: s.AutoRenew, Ticket: s.Ticket,
	}
}

func hold(r store.Hold) suspend.Hold {
	return suspend.Hold{
		Target: suspend.Target{Scope: suspend.Scope(r.Scope), Name: r.Name},
		Until:  r.Until, By: r.By, Reason: r.Reason,
	}
}

func holdRecord(g dispatch.GroupID, h *suspend.Hold) *store.Hold {
	return &store.Hold{
		Group: uint32(g), Scope: uint8(h.Target.Scope), Name: h.Target.Name,
		Until: h.Until, By: h.By, Reason: h.Reason,
	}
}

func account(r store.Account) quota.Record {
	return quota.Record{Target: suspend.Target{Scope: suspend.Scope(r.Scope), Name: r.Name}, Data: r.Data}
}

func accountRecord(g dispatch.GroupID, r *quota.Record) *store.Account {
	return &store.Account{Group: uint32(g), Scope: uint8(r.Target.Scope), Name: r.Target.Name, Data: r.Data}
}

func subscriptionState(r store.Subscription) dispatch.SubscriptionState {
	return dispatch.SubscriptionState{Group: dispatch.GroupID(r.Group), Client: r.Client, Wildcard: r.Wildcard, Names: r.Names}
}

func subscriptionRecord(s *dispatch.SubscriptionState, now time.Time) *store.Subscription {
	return &store.Subscription{Group: uint32(s.Group), Client: s.Client, Wildcard: s.Wildcard, Names: s.Names, Updated: now}
}

func topicRecord(id uint16, c TopicConfig, created time.Time) *store.Topic {
	return &store.Topic{
		ID: id, Name: c.Name, TTL: c.TTL, ExpireBacklog: c.ExpireBacklog,
		MaxMessages: c.MaxMessages, MaxBytes: c.MaxBytes, MaxBuckets: c.MaxBuckets,
		MaxWaiters: c.MaxWaiters, MaxSubscriptions: c.MaxSubscriptions, Created: created, Auto: c.Auto,
		MaxUserBuckets: c.MaxUserBuckets, UnservedTTL: c.UnservedTTL,
	}
}

func topicConfig(r store.Topic) TopicConfig {
	return TopicConfig{
		Name: r.Name, TTL: r.TTL, ExpireBacklog: r.ExpireBacklog,
		MaxMessages: r.MaxMessages, MaxBytes: r.MaxBytes, MaxBuckets: r.MaxBuckets,
		MaxWaiters: r.MaxWaiters, MaxSubscriptions: r.MaxSubscriptions, Auto: r.Auto,
		MaxUserBuckets: r.MaxUserBuckets, UnservedTTL: r.UnservedTTL,
	}.withDefaults()
}

func (g *groupState) record(id dispatch.GroupID) *store.Group {
	c := g.cfg
	return &store.Group{
		ID: uint32(id), Name: c.Name, Topic: c.Topic, Wildcard: c.Wildcard, Exclusive: c.Exclusive,
		StartLatest: c.StartLatest, Unlimited: c.Unlimited, InFlight: c.InFlight, MaxAttempts: c.MaxAttempts,
		ClientQuota: c.ClientQuota, MaxSuspend: c.MaxSuspend, Created: g.created,
		Auto: c.Auto, Retention: c.Retention, Idle: g.idle,
	}
}

func groupConfig(r store.Group) GroupConfig {
	return GroupConfig{
		Name: r.Name, Topic: r.Topic, Wildcard: r.Wildcard, Exclusive: r.Exclusive,
		StartLatest: r.StartLatest, Unlimited: r.Unlimited, InFlight: r.InFlight, MaxAttempts: r.MaxAttempts,
		ClientQuota: r.ClientQuota, MaxSuspend: r.MaxSuspend, Auto: r.Auto, Retention: r.Retention,
	}.withDefaults()
}

func (c GroupConfig) dispatch(id dispatch.GroupID) dispatch.GroupConfig {
	return dispatch.GroupConfig{
		Name: c.Name, ID: id, Wildcard: c.Wildcard, InFlight: c.InFlight, MaxAttempts: c.MaxAttempts,
		ClientQuota: c.ClientQuota, Exclusive: c.Exclusive, MaxSuspend: c.MaxSuspend,
		StartLatest: c.StartLatest, Unlimited: c.Unlimited,
	}
}

func (c TopicConfig) dispatch(id uint16, nextBucket uint64, epoch uint32) dispatch.TopicConfig {
	return dispatch.TopicConfig{
		Name: c.Name, ID: id, TTL: c.TTL, ExpireBacklog: c.ExpireBacklog,
		MaxMessages: c.MaxMessages, MaxBytes: c.MaxBytes, MaxBuckets: c.MaxBuckets,
		MaxWaiters: c.MaxWaiters, MaxSubscriptions: c.MaxSubscriptions,
		MaxUserBuckets: c.MaxUserBuckets, UnservedTTL: c.UnservedTTL,
		NextBucket: nextBucket, Epoch: epoch,
	}
}

func toStored(m *Message, stored, deadline time.Time) *store.Message {
	return &store.Message{
		ID: m.ID, Tag: m.Tag, Keys: m.Keys, Properties: store.PropertyList(m.Properties),
		BodyEncoding: uint8(m.Encoding), BornHost: m.BornHost, TraceContext: m.TraceContext,
		// A sender's clock may be wrong by any amount, and RocketMQ accepts every birth time: a
		// wrong birth time is no reason to refuse a message.
		Born: store.ClampTime(m.Born), Stored: stored, Deadline: deadline, Body: m.Body,
	}
}

func fromStored(m *store.Message, name string) Message {
	return Message{
		Lite: name, ID: m.ID, Tag: m.Tag, Keys: m.Keys, Properties: m.PropertyMap(),
		Body: m.Body, Encoding: Encoding(m.BodyEncoding), Born: m.Born,
		BornHost: m.BornHost, TraceContext: m.TraceContext,
	}
}

func toDelivery(it *pulledItem, m *store.Message) Delivery {
	return Delivery{
		Message: fromStored(m, it.Name),
		Handle:  encodeReceipt(it.Handle),
		Offset:  uint64(it.Handle.Offset),
		Attempt: int(it.Attempt),
		Stored:  m.Stored, InvisibleUntil: it.Until,
	}
}
