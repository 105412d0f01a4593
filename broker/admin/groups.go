package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/broker"
)

// Group is a consumer group. Fields that a request leaves out take their defaults.
type Group struct {
	Name        string   `json:"name"`
	Topic       string   `json:"topic"`
	Wildcard    bool     `json:"wildcard"`
	Exclusive   bool     `json:"exclusive"`
	InFlight    int      `json:"in_flight"`
	MaxAttempts int      `json:"max_attempts"`
	ClientQuota int      `json:"client_quota"`
	MaxSuspend  Duration `json:"max_suspend"`
	StartLatest bool     `json:"start_latest"`
	// Retention is the time without a consumer after which the group is removed; 0 is
	// forever.
	Retention Duration `json:"retention"`
}

// GroupStatus is a group with its use.
type GroupStatus struct {
	Group
	// Auto: the group was created on demand, by a consumer.
	Auto bool `json:"auto"`
	// Clients is the number of consumers that sent a request within the last three minutes,
	// IdleSeconds the time without a consumer while the broker ran.
	Clients     int   `json:"clients"`
	IdleSeconds int64 `json:"idle_seconds"`
	// Kept counts the messages that are kept for this group alone, since all other groups have
	// settled them. It is up to 10 s old, and approximate.
	Kept int64 `json:"kept"`
}

// Groups is the answer to a list of them.
type Groups struct {
	Groups []GroupStatus `json:"groups"`
}

func groupOf(c broker.GroupConfig) Group {
	return Group{
		Name: c.Name, Topic: c.Topic, Wildcard: c.Wildcard, Exclusive: c.Exclusive, InFlight: c.InFlight,
		MaxAttempts: c.MaxAttempts, ClientQuota: c.ClientQuota, MaxSuspend: Duration(c.MaxSuspend), StartLatest: c.StartLatest,
		Retention: Duration(c.Retention),
	}
}

func (g Group) config() broker.GroupConfig {
	return broker.GroupConfig{
		Name: g.Name, Topic: g.Topic, Wildcard: g.Wildcard, Exclusive: g.Exclusive, InFlight: g.InFlight,
		MaxAttempts: g.MaxAttempts, ClientQuota: g.ClientQuota, MaxSuspend: time.Duration(g.MaxSuspend), StartLatest: g.StartLatest,
		Retention: time.Duration(g.Retention),
	}
}

func (s *Server) listGroups(r *http.Request) (int, any, error) {
	if _, err := parameters(r); err != nil {
		return 0, nil, err
	}
	uses, err := s.groupUses(r.Context())
	if err != nil {
		return 0, nil, err
	}
	out := Groups{Groups: []GroupStatus{}}
	for _, c := range s.broker.Groups() {
		out.Groups = append(out.Groups, groupStatus(c, uses[c.Name]))
	}
	return http.StatusOK, out, nil
}

func groupStatus(c broker.GroupConfig, use broker.GroupUse) GroupStatus {
	return GroupStatus{
		Group: groupOf(c), Auto: c.Auto, Clients: use.Clients, IdleSeconds: int64(use.Idle.Seconds()), Kept: use.Kept,
	}
}

// groupUses returns the uses of all groups by name.
func (s *Server) groupUses(ctx context.Context) (map[string]broker.GroupUse, error) {
	stats, err := s.broker.Stats(ctx)
	if err != nil {
		return nil, err
	}
	uses := map[string]broker.GroupUse{}
	for _, t := range stats.Topics {
		for _, use := range t.Uses {
			uses[use.Name] = use
		}
	}
	return uses, nil
}

func (s *Server) group(ctx context.Context, name string) (GroupStatus, error) {
	c, ok := s.broker.Group(name)
	if !ok {
		return GroupStatus{}, fmt.Errorf("%w: %q", broker.ErrGroupNotFound, name)
	}
	uses, err := s.groupUses(ctx)
	return groupStatus(c, uses[name]), err
}

func (s *Server) getGroup(r *http.Request) (int, any, error) {
	g, err := s.group(r.Context(), r.PathValue("group"))
	return http.StatusOK, g, err
}

func (s *Server) createGroup(r *http.Request) (int, any, error) {
	// The document that a GET returned is taken back, with the fields that only describe use.
	var g GroupStatus
	if err := decode(r, &g); err != nil {
		return 0, nil, err
	}
	if err := s.broker.CreateGroup(r.Context(), g.config()); err != nil {
		return 0, nil, err
	}
	created, err := s.group(r.Context(), g.Name)
	return http.StatusCreated, created, err
}

func (s *Server) deleteGroup(r *http.Request) (int, any, error) {
	err := s.broker.DeleteGroup(r.Context(), r.PathValue("group"))
	return http.StatusOK, struct{}{}, err
}
