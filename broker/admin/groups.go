package admin

import (
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
}

// Groups is the answer to a list of them.
type Groups struct {
	Groups []Group `json:"groups"`
}

func groupOf(c broker.GroupConfig) Group {
	return Group{
		Name: c.Name, Topic: c.Topic, Wildcard: c.Wildcard, Exclusive: c.Exclusive, InFlight: c.InFlight,
		MaxAttempts: c.MaxAttempts, ClientQuota: c.ClientQuota, MaxSuspend: Duration(c.MaxSuspend), StartLatest: c.StartLatest,
	}
}

func (g Group) config() broker.GroupConfig {
	return broker.GroupConfig{
		Name: g.Name, Topic: g.Topic, Wildcard: g.Wildcard, Exclusive: g.Exclusive, InFlight: g.InFlight,
		MaxAttempts: g.MaxAttempts, ClientQuota: g.ClientQuota, MaxSuspend: time.Duration(g.MaxSuspend), StartLatest: g.StartLatest,
	}
}

func (s *Server) listGroups(r *http.Request) (int, any, error) {
	if _, err := parameters(r); err != nil {
		return 0, nil, err
	}
	out := Groups{Groups: []Group{}}
	for _, c := range s.broker.Groups() {
		out.Groups = append(out.Groups, groupOf(c))
	}
	return http.StatusOK, out, nil
}

func (s *Server) group(name string) (Group, error) {
	c, ok := s.broker.Group(name)
	if !ok {
		return Group{}, fmt.Errorf("%w: %q", broker.ErrGroupNotFound, name)
	}
	return groupOf(c), nil
}

func (s *Server) getGroup(r *http.Request) (int, any, error) {
	g, err := s.group(r.PathValue("group"))
	return http.StatusOK, g, err
}

func (s *Server) createGroup(r *http.Request) (int, any, error) {
	var g Group
	if err := decode(r, &g); err != nil {
		return 0, nil, err
	}
	if err := s.broker.CreateGroup(r.Context(), g.config()); err != nil {
		return 0, nil, err
	}
	g, err := s.group(g.Name)
	return http.StatusCreated, g, err
}

func (s *Server) deleteGroup(r *http.Request) (int, any, error) {
	err := s.broker.DeleteGroup(r.Context(), r.PathValue("group"))
	return http.StatusOK, struct{}{}, err
}
