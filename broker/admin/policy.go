package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/suspend/live"
	"github.com/penstockmq/penstock/suspend/policy"
)

// Policy is the document in force in this process.
type Policy struct {
	// Source is the file or directory it was read from; empty when it comes from NATS or there is none.
	Source string `json:"source"`
	// Version tells who put it in force; absent when it comes from a file.
	Version *PolicyVersion `json:"version,omitempty"`
	// Document is the policy in its canonical form, YAML.
	Document string        `json:"document"`
	Limits   []policy.Text `json:"limits"`
	// Notice says that the document differs from its source, for example when NATS has lost it; absent when it does not.
	Notice string `json:"notice,omitempty"`
}

// PolicyVersion is a policy that is or was in force.
type PolicyVersion struct {
	Revision uint64    `json:"revision"`
	At       time.Time `json:"at"`
	Author   string    `json:"author"`
	Comment  string    `json:"comment,omitempty"`
	From     uint64    `json:"from,omitempty"` // the revision that a rollback put in force again
	Text     string    `json:"text,omitempty"` // as it was applied; absent in lists
}

// PolicyVersions is the answer to a list of them, the newest first.
type PolicyVersions struct {
	Versions []PolicyVersion `json:"versions"`
}

// ApplyPolicy is the body that puts a policy in force.
type ApplyPolicy struct {
	Text    string `json:"text"`
	Author  string `json:"author"`
	Comment string `json:"comment,omitempty"`
	// Expect is the revision that it replaces: another one is a conflict. 0 is any.
	Expect uint64 `json:"expect,omitempty"`
}

// RollbackPolicy is the body that puts an earlier version in force again.
type RollbackPolicy struct {
	Revision uint64 `json:"revision"`
	Author   string `json:"author"`
	Comment  string `json:"comment,omitempty"`
}

// CheckPolicy is the body that compares a policy with the one in force.
type CheckPolicy struct {
	Text string `json:"text"`
}

// PolicyCheck is what would change.
type PolicyCheck struct {
	Changes []policy.Change `json:"changes"`
	Effects []policy.Effect `json:"effects"`
	// More says that there are more effects than are listed.
	More bool `json:"more,omitempty"`
}

// Cell is what the policy says of one user and model.
type Cell struct {
	User   string        `json:"user"`
	Model  string        `json:"model"`
	Limits []policy.Line `json:"limits"`
}

// CellPolicy is every level that was considered for one user and model.
type CellPolicy struct {
	User       string              `json:"user"`
	Model      string              `json:"model"`
	Level      uint8               `json:"level"`
	LevelFrom  string              `json:"level_from"`
	Considered []policy.Considered `json:"considered"`
}

// PolicySource is the policy that a process follows.
type PolicySource struct {
	// Path is the file or directory it follows; empty when it follows Live.
	Path    string
	Current func() *policy.Document
	// Live is where policies are applied; nil when they come from Path, or when nothing can be applied.
	Live PolicyStore
	// Notice returns one line when the document differs from its source, else the empty text. Nil: it never differs.
	Notice func() string
}

// PolicyStore keeps the policy of an installation and its history; [live.Policies] is the one there is.
type PolicyStore interface {
	Version() live.Version
	Apply(ctx context.Context, c live.Change) (live.Version, error)
	History(ctx context.Context, limit int) ([]live.Version, error)
	Get(ctx context.Context, revision uint64) (live.Version, error)
	Rollback(ctx context.Context, revision uint64, author, comment string) (live.Version, error)
}

var (
	errPolicyFile = errors.New("the policy follows a file: change it there")
	errPolicyNone = errors.New("this process has no store of policies")
)

// maxPolicyBody bounds a request with a policy: JSON may double the bytes of its text.
const maxPolicyBody = 2*policy.MaxBytes + 4096

// maxEffects bounds the effects of a check that are listed.
const maxEffects = 1000

func versionOf(v live.Version, text bool) PolicyVersion {
	out := PolicyVersion{Revision: v.Revision, At: v.At.UTC(), Author: v.Author, Comment: v.Comment, From: v.From}
	if text {
		out.Text = string(v.Text)
	}
	return out
}

// getPolicy answers with all rules, or with ?user=&model= with what holds for a cell.
func (s *Server) getPolicy(r *http.Request) (int, any, error) {
	doc, err := s.currentPolicy()
	if err != nil {
		return 0, nil, err
	}
	q, err := parameters(r, "user", "model")
	if err != nil {
		return 0, nil, err
	}
	if q.Has("user") || q.Has("model") {
		user, model := q.Get("user"), q.Get("model")
		return http.StatusOK, Cell{user, model, doc.Resolve(user, model).Explain()}, nil
	}
	text, err := doc.Marshal()
	if err != nil {
		return 0, nil, err
	}
	out := Policy{Source: s.policy.Path, Document: string(text), Limits: []policy.Text{}}
	if s.policy.Live != nil && s.policy.Path == "" {
		if v := s.policy.Live.Version(); v.Revision > 0 {
			version := versionOf(v, true)
			out.Version = &version
		}
	}
	if s.policy.Notice != nil {
		out.Notice = s.policy.Notice()
	}
	for _, rule := range doc.Rules() {
		out.Limits = append(out.Limits, rule.Text())
	}
	return http.StatusOK, out, nil
}

func (s *Server) currentPolicy() (*policy.Document, error) {
	if s.policy == nil {
		return nil, errNoPolicy
	}
	return s.policy.Current(), nil
}

// policyStore is where policies can be applied, or why nowhere.
func (s *Server) policyStore() (PolicyStore, error) {
	switch {
	case s.policy == nil:
		return nil, errNoPolicy
	case s.policy.Path != "":
		return nil, fmt.Errorf("%w: %s", errPolicyFile, s.policy.Path)
	case s.policy.Live == nil:
		return nil, errPolicyNone
	}
	return s.policy.Live, nil
}

// readPolicy waits until no other request reads a policy; done must follow. A large policy
// takes hundreds of MiB while it is read. REQUIRES: the whole body was received.
func (s *Server) readPolicy(ctx context.Context) (done func(), err error) {
	select {
	case s.reading <- struct{}{}:
		return func() { <-s.reading }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *Server) applyPolicy(r *http.Request) (int, any, error) {
	store, err := s.policyStore()
	if err != nil {
		return 0, nil, err
	}
	var body ApplyPolicy
	if err := decodeUpTo(r, &body, maxPolicyBody); err != nil {
		return 0, nil, err
	}
	done, err := s.readPolicy(r.Context())
	if err != nil {
		return 0, nil, err
	}
	defer done()
	v, err := store.Apply(r.Context(), live.Change{
		Text: []byte(body.Text), Author: body.Author, Comment: body.Comment, Expect: body.Expect,
	})
	return http.StatusOK, versionOf(v, false), err
}

func (s *Server) listPolicyVersions(r *http.Request) (int, any, error) {
	store, err := s.policyStore()
	if err != nil {
		return 0, nil, err
	}
	q, err := parameters(r, "limit")
	if err != nil {
		return 0, nil, err
	}
	limit, err := pageSize(q)
	if err != nil {
		return 0, nil, err
	}
	versions, err := store.History(r.Context(), limit)
	out := PolicyVersions{Versions: make([]PolicyVersion, len(versions))}
	for i, v := range versions {
		out.Versions[i] = versionOf(v, false)
	}
	return http.StatusOK, out, err
}

func (s *Server) getPolicyVersion(r *http.Request) (int, any, error) {
	store, err := s.policyStore()
	if err != nil {
		return 0, nil, err
	}
	text := r.PathValue("revision")
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, nil, inField("revision", fmt.Errorf("%w: %q is no revision", errParameter, text))
	}
	v, err := store.Get(r.Context(), revision)
	return http.StatusOK, versionOf(v, true), err
}

func (s *Server) rollbackPolicy(r *http.Request) (int, any, error) {
	store, err := s.policyStore()
	if err != nil {
		return 0, nil, err
	}
	var body RollbackPolicy
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	done, err := s.readPolicy(r.Context())
	if err != nil {
		return 0, nil, err
	}
	defer done()
	v, err := store.Rollback(r.Context(), body.Revision, body.Author, body.Comment)
	return http.StatusOK, versionOf(v, false), err
}

// checkPolicy compares a document with the one in force; nothing is changed.
func (s *Server) checkPolicy(r *http.Request) (int, any, error) {
	inForce, err := s.currentPolicy()
	if err != nil {
		return 0, nil, err
	}
	var body CheckPolicy
	if err := decodeUpTo(r, &body, maxPolicyBody); err != nil {
		return 0, nil, err
	}
	done, err := s.readPolicy(r.Context())
	if err != nil {
		return 0, nil, err
	}
	defer done()
	doc, err := policy.Parse([]byte(body.Text))
	if err != nil {
		return 0, nil, inField("text", err)
	}
	out := PolicyCheck{Changes: policy.Diff(inForce, doc)}
	out.Effects, out.More = policy.Effects(inForce, doc, maxEffects)
	if out.Changes == nil {
		out.Changes = []policy.Change{}
	}
	if out.Effects == nil {
		out.Effects = []policy.Effect{}
	}
	return http.StatusOK, out, nil
}

// explainPolicy lists each level that was considered for a cell.
func (s *Server) explainPolicy(r *http.Request) (int, any, error) {
	doc, err := s.currentPolicy()
	if err != nil {
		return 0, nil, err
	}
	q, err := parameters(r, "user", "model")
	if err != nil {
		return 0, nil, err
	}
	out := CellPolicy{User: q.Get("user"), Model: q.Get("model")}
	out.Considered = doc.Considered(out.User, out.Model)
	out.Level, out.LevelFrom = doc.Importance(out.User, out.Model)
	return http.StatusOK, out, nil
}
