package admin

import (
	"net/http"

	"github.com/penstockmq/penstock/suspend/policy"
)

// Policy is the document in force in this process.
type Policy struct {
	// Source is the file it was read from; empty when there is none.
	Source string        `json:"source"`
	Limits []policy.Text `json:"limits"`
}

// Cell is what the policy says of one user and model.
type Cell struct {
	User   string        `json:"user"`
	Model  string        `json:"model"`
	Limits []policy.Line `json:"limits"`
}

// PolicySource is the policy that a process follows.
type PolicySource struct {
	Path    string
	Current func() *policy.Document
}

// getPolicy answers with all rules, or with ?user=&model= with what holds for a cell.
func (s *Server) getPolicy(r *http.Request) (int, any, error) {
	if s.policy == nil {
		return 0, nil, errNoPolicy
	}
	q, err := parameters(r, "user", "model")
	if err != nil {
		return 0, nil, err
	}
	doc := s.policy.Current()
	if q.Has("user") || q.Has("model") {
		user, model := q.Get("user"), q.Get("model")
		return http.StatusOK, Cell{user, model, doc.Resolve(user, model).Explain()}, nil
	}
	out := Policy{Source: s.policy.Path, Limits: []policy.Text{}}
	for _, rule := range doc.Rules() {
		out.Limits = append(out.Limits, rule.Text())
	}
	return http.StatusOK, out, nil
}
