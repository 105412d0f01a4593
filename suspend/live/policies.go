package live

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/penstockmq/penstock/suspend/policy"
)

var (
	// ErrConflict: somebody else applied a policy in between. Read the one in force and try again.
	ErrConflict = errors.New("the policy was changed in between")
	// ErrNoVersion: there is no such version; the history holds the last HistoryMax.
	ErrNoVersion = errors.New("no such policy version")
	// ErrField is wrapped by the errors about an author or comment.
	ErrField = errors.New("invalid policy change")
)

// Options of OpenPolicies and OpenSignals.
type Options struct {
	// Logger gets what goes wrong at run time. Nil drops it.
	Logger *slog.Logger
	// Replicas of the bucket in a NATS cluster. 0 means 1.
	Replicas int
}

// Version is a policy that was in force, with who put it there.
type Version struct {
	Revision uint64 // grows with each change; 0: nothing was ever applied, and Document is the empty one
	At       time.Time
	Author   string
	Comment  string
	From     uint64 // the revision that a rollback put in force again; 0: it was no rollback
	Text     []byte // as it was applied
	Document *policy.Document
}

// Change is a policy to be put in force.
type Change struct {
	Text    []byte
	Author  string // 1 to 128 bytes
	Comment string // at most 1024 bytes
	Expect  uint64 // the revision that it replaces; 0: any
}

// Policies follows the policy in force.
type Policies struct {
	kv      jetstream.KeyValue
	log     *slog.Logger
	current atomic.Pointer[Version]

	mu      sync.Mutex // guards changed
	changed chan struct{}
}

// OpenPolicies makes the bucket if it does not exist, and reads the policy in force.
func OpenPolicies(ctx context.Context, nc *nats.Conn, opts Options) (*Policies, error) {
	return nil, errors.ErrUnsupported
}

// Current is the document in force.
func (p *Policies) Current() *policy.Document { return p.current.Load().Document }

// Version is the version in force.
func (p *Policies) Version() Version { return *p.current.Load() }

// Changed is closed at the next change of Current. To miss none, take it before Current.
func (p *Policies) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Close ends Run. It may be called more than once, and without Run.
func (p *Policies) Close() error { return errors.ErrUnsupported }

// Run follows the bucket until ctx is done.
func (p *Policies) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Apply puts a policy in force everywhere. A document that is not valid is refused whole, as policy.ErrInvalid.
func (p *Policies) Apply(ctx context.Context, c Change) (Version, error) {
	return Version{}, errors.ErrUnsupported
}

// History lists versions, the newest first; limit 0 means all that are kept.
func (p *Policies) History(ctx context.Context, limit int) ([]Version, error) {
	return nil, errors.ErrUnsupported
}

// Get is one version of the history. ErrNoVersion.
func (p *Policies) Get(ctx context.Context, revision uint64) (Version, error) {
	return Version{}, errors.ErrUnsupported
}

// Rollback puts the text of an earlier version in force again, as a new version.
func (p *Policies) Rollback(ctx context.Context, revision uint64, author, comment string) (Version, error) {
	return Version{}, errors.ErrUnsupported
}
