package admin

import (
	"net/http"
	"time"

	"github.com/penstockmq/penstock/broker"
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
	Groups     []BucketGroup `json:"groups"`
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

func bucketOf(b broker.BucketInfo) Bucket {
	out := Bucket{
		Name: b.Name, User: b.Cell.User, Model: b.Cell.Model, Level: b.Level, Queued: b.Queued, Bytes: b.Bytes,
		Head: b.Head, Tail: b.Tail, Created: b.Created.UTC(), LastActive: b.LastActive.UTC(), Groups: []BucketGroup{},
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
	for _, b := range found {
		out.Buckets = append(out.Buckets, bucketOf(b))
	}
	return http.StatusOK, out, nil
}

func (s *Server) getBucket(r *http.Request) (int, any, error) {
	b, err := s.broker.Bucket(r.Context(), r.PathValue("topic"), r.PathValue("bucket"))
	return http.StatusOK, bucketOf(b), err
}

func (s *Server) purgeBucket(r *http.Request) (int, any, error) {
	n, err := s.broker.Purge(r.Context(), r.PathValue("topic"), r.PathValue("bucket"))
	return http.StatusOK, Purged{n}, err
}
