package admin

import (
	"net/http"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/suspend"
)

// Bucket is one lite topic.
type Bucket struct {
	Name       string        `json:"name"`
	User       string        `json:"user,omitempty"`
	Model      string        `json:"model,omitempty"`
	Level      uint8         `json:"level"`
	Queued     int           `json:"queued"`
	Bytes      int64         `json:"bytes"`
	Head       uint64        `json:"head"`
	Tail       uint64        `json:"tail"`
	Created    time.Time     `json:"created"`
	LastActive time.Time     `json:"last_active"`
	Status     BucketStatus  `json:"status"`
	Groups     []BucketGroup `json:"groups"`
}

// BucketStatus is how far a bucket is in its life: without use for the TTL of its parent topic, it goes away.
type BucketStatus string

// The stages of a bucket's life.
const (
	BucketActive       BucketStatus = "active"
	BucketExpiringSoon BucketStatus = "expiring_soon" // a fifth of its TTL, or less, is left
	BucketExpired      BucketStatus = "expired"       // the next sweep removes it
)

// lifeOf is the status of a bucket that was last used at active. A TTL of 0 is for ever. What is expired is past the
// bound of what expires soon too, so that is asked first.
func lifeOf(active time.Time, ttl time.Duration, now time.Time) BucketStatus {
	idle := now.Sub(active)
	switch {
	case ttl <= 0:
		return BucketActive
	case idle >= ttl:
		return BucketExpired
	case idle >= ttl-ttl/5:
		return BucketExpiringSoon
	}
	return BucketActive
}

// usedAt is when a bucket was last in use: now, if something of it is out, or is queued and does not expire by itself. A
// hold of its own is use until it ends.
func usedAt(b broker.BucketInfo, topic broker.TopicConfig, now time.Time) time.Time {
	at := b.LastActive
	if b.Queued > 0 && !topic.ExpireBacklog {
		return now
	}
	for _, g := range b.Groups {
		if g.Leased > 0 {
			return now
		}
		if h := g.Hold; h.Target.Scope == suspend.Bucket && h.Until.After(at) {
			at = h.Until
		}
	}
	return at
}

// BucketGroup is one group's place in a bucket. A group that has read all of it is
// not listed.
type BucketGroup struct {
	Group    string   `json:"group"`
	Floor    uint64   `json:"floor"`
	Queued   int      `json:"queued"`
	Leased   int      `json:"leased"`
	Returned int      `json:"returned"`
	Suspend  *Suspend `json:"suspend,omitempty"`
}

// Buckets is one page of them, by name. Next is the after of the next page, empty on
// the last.
type Buckets struct {
	Buckets []Bucket `json:"buckets"`
	Next    string   `json:"next,omitempty"`
}

// Purged says how many messages were settled.
type Purged struct {
	Purged int `json:"purged"`
}

func bucketOf(b broker.BucketInfo, topic broker.TopicConfig, now time.Time) Bucket {
	out := Bucket{
		Name: b.Name, User: b.Cell.User, Model: b.Cell.Model, Level: b.Level, Queued: b.Queued, Bytes: b.Bytes,
		Head: b.Head, Tail: b.Tail, Created: b.Created.UTC(), LastActive: b.LastActive.UTC(),
		Status: lifeOf(usedAt(b, topic, now), topic.TTL, now), Groups: []BucketGroup{},
	}
	for _, g := range b.Groups {
		group := BucketGroup{Group: g.Group, Floor: g.Floor, Queued: g.Queued, Leased: g.Leased, Returned: g.Returned}
		if !g.Hold.Until.IsZero() {
			hold := suspendOf(g.Hold)
			group.Suspend = &hold
		}
		out.Groups = append(out.Groups, group)
	}
	return out
}

func (s *Server) listBuckets(r *http.Request) (int, any, error) {
	q, err := parameters(r, "prefix", "after", "limit")
	if err != nil {
		return 0, nil, err
	}
	limit, err := pageSize(q)
	if err != nil {
		return 0, nil, err
	}
	// One more than asked for tells whether there is a next page.
	found, err := s.broker.Buckets(r.Context(), r.PathValue("topic"), q.Get("prefix"), q.Get("after"), limit+1)
	if err != nil {
		return 0, nil, err
	}
	out := Buckets{Buckets: []Bucket{}}
	if len(found) > limit {
		found = found[:limit]
		out.Next = found[limit-1].Name
	}
	topic, _ := s.broker.Topic(r.PathValue("topic")) // gone meanwhile: nothing expires any more
	now := time.Now()
	for _, b := range found {
		out.Buckets = append(out.Buckets, bucketOf(b, topic, now))
	}
	return http.StatusOK, out, nil
}

func (s *Server) getBucket(r *http.Request) (int, any, error) {
	b, err := s.broker.Bucket(r.Context(), r.PathValue("topic"), r.PathValue("bucket"))
	topic, _ := s.broker.Topic(r.PathValue("topic"))
	return http.StatusOK, bucketOf(b, topic, time.Now()), err
}

func (s *Server) purgeBucket(r *http.Request) (int, any, error) {
	n, err := s.broker.Purge(r.Context(), r.PathValue("topic"), r.PathValue("bucket"))
	return http.StatusOK, Purged{n}, err
}
