package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/penstockmq/penstock/suspend/policy"
)

const (
	policyBucket = "PENSTOCK_POLICY"
	policyKey    = "current"
	// HistoryMax is how many versions are kept; JetStream allows no more.
	HistoryMax = 64
)

var (
	// ErrConflict: somebody else applied a policy in between. Read the one in force and try again.
	ErrConflict = errors.New("the policy was changed in between")
	// ErrNoVersion: there is no such version; the history holds the last HistoryMax.
	ErrNoVersion = errors.New("no such policy version")
	// ErrField is wrapped by the errors about an author or comment.
	ErrField = errors.New("invalid policy change")
)

// Policies follows the policy in force. It can be used in place of a policy.File.
type Policies struct {
	bucket  *bucket
	current atomic.Pointer[Version] // set by OpenPolicies, then by Run alone

	mu      sync.Mutex // guards changed
	changed chan struct{}

	closing   chan struct{} // closed by Close
	closeOnce sync.Once

	floor uint64 // owned by Run: the latest revision that this watch has shown

	keep string // file of the policy in force; immutable; empty: no copy is kept

	saving sync.Mutex // guards the file and the following field
	saved  Version    // the version in the file, without Text; no Document: none was saved by this process

	lost atomic.Pointer[string] // description of a loss in NATS; nil: no loss, or a policy was applied since
}

// OpenPolicies makes the bucket if it does not exist, and reads the policy in force. It is followed while Run runs.
func OpenPolicies(ctx context.Context, nc *nats.Conn, opts Options) (*Policies, error) {
	b, err := openBucket(ctx, nc, jetstream.KeyValueConfig{
		Bucket: policyBucket, Description: "Penstock's limit policy and its history", History: HistoryMax,
	}, opts)
	if err != nil {
		return nil, err
	}
	p := &Policies{bucket: b, changed: make(chan struct{}), closing: make(chan struct{}), keep: opts.Keep}
	v, err := p.read(ctx)
	if err != nil {
		return nil, err
	}
	if p.keep != "" {
		kept, err := loadKept(p.keep)
		if err != nil {
			b.log.Error("the kept copy of the policy cannot be read, the version in NATS is in force", "error", err)
		}
		if kept.lostTo(v) {
			p.current.Store(&kept)
			p.restore(ctx, v.Revision)
			return p, nil
		}
	}
	p.save(v)
	p.current.Store(&v)
	return p, nil
}

// save keeps v, unless a later version is kept: Apply and Run both call it. If the copy cannot be written, that is logged:
// the limits act in any case.
func (p *Policies) save(v Version) {
	if p.keep == "" || v.Revision == 0 {
		return
	}
	p.saving.Lock()
	defer p.saving.Unlock()
	if p.saved.lostTo(v) || (p.saved.Revision == v.Revision && p.saved.At.Equal(v.At)) {
		return
	}
	if err := saveKept(p.keep, v); err != nil {
		p.bucket.log.Error("the policy in force could not be kept beside NATS", "file", p.keep, "error", err)
		return
	}
	v.Text = nil
	p.saved = v
}

// restoreMax bounds the time of restore.
const restoreMax = 5 * time.Second

// restore writes the policy in force to NATS again after NATS has lost it: has is the revision in NATS, 0 for none. Of
// several processes that restore it one wins, and all write the same policy.
func (p *Policies) restore(ctx context.Context, has uint64) {
	v := *p.current.Load()
	text := fmt.Sprintf("the copy kept on this machine, of revision %d, is in force since %s: NATS has lost it (it has revision %d)",
		v.Revision, time.Now().UTC().Format(time.RFC3339), has)
	p.lost.Store(&text)
	p.bucket.log.Error("NATS has lost the policy in force, the kept copy stays in force", "revision", v.Revision, "has", has)
	v.Comment = clipText("restored by penstock, since NATS had lost it. "+v.Comment, maxComment)
	value, err := encodeVersion(v)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, restoreMax)
		defer cancel()
		if has == 0 {
			_, err = p.bucket.kv.Create(ctx, policyKey, value)
		} else {
			_, err = p.bucket.kv.Put(ctx, policyKey, value)
		}
	}
	if err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
		p.bucket.log.Error("the policy could not be restored in NATS", "error", err)
	}
}

func clipText(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}

// Lost describes a loss in NATS; empty if there is none. It stays until the next policy is applied or the process restarts.
func (p *Policies) Lost() string {
	if text := p.lost.Load(); text != nil {
		return *text
	}
	return ""
}

// read finds the latest version that can be read: the same one that processes have in force that were there when it came.
func (p *Policies) read(ctx context.Context) (Version, error) {
	entry, err := p.bucket.kv.Get(ctx, policyKey)
	switch {
	case err == nil:
		v, err := decodeVersion(entry)
		if err == nil {
			return v, nil
		}
		p.bucket.log.Error("the latest policy cannot be read, an earlier one is in force", "revision", entry.Revision(), "error", err)
	case errors.Is(err, jetstream.ErrKeyNotFound): // never applied, or deleted
	default:
		return Version{}, fmt.Errorf("read policy: %w", err)
	}
	versions, err := p.history(ctx, 0)
	if err != nil {
		return Version{}, err
	}
	for _, v := range versions { // one at a time, and rarely more than two
		if v.parse() == nil {
			return v, nil
		}
	}
	return Version{Document: policy.Empty()}, nil
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
func (p *Policies) Close() error {
	p.closeOnce.Do(func() { close(p.closing) })
	return nil
}

// Run follows the bucket until ctx is done or Close is called, and then returns nil. It is to be called once.
func (p *Policies) Run(ctx context.Context) error {
	ctx, cancel := until(ctx, p.closing)
	defer cancel()
	p.bucket.follow(ctx, func(entries []jetstream.KeyValueEntry) {
		p.floor = 0 // a bucket that was made anew counts from one again
		found := false
		for _, e := range entries {
			found = found || e.Key() == policyKey
			p.adopt(e)
		}
		if !found && p.current.Load().Revision > 0 {
			p.restore(ctx, 0)
		}
	}, p.adopt, nil)
	return nil
}

// adopt puts an entry in force if it is new and good.
func (p *Policies) adopt(e jetstream.KeyValueEntry) {
	if e.Key() != policyKey || e.Revision() <= p.floor {
		return
	}
	p.floor = e.Revision()
	if e.Operation() != jetstream.KeyValuePut {
		// To lift all limits takes an empty policy that somebody applied, not a key that somebody deleted.
		p.bucket.log.Error("the policy was deleted in NATS, the policy before it stays", "revision", e.Revision())
		return
	}
	v, err := decodeVersion(e)
	if err != nil {
		p.bucket.log.Error("policy in NATS refused, the policy before it stays", "revision", e.Revision(), "error", err)
		return
	}
	was := p.current.Load()
	if was.Revision == v.Revision && was.At.Equal(v.At) {
		return
	}
	if was.lostTo(v) {
		return // older than the version in force, see restore
	}
	p.save(v) // before it acts
	p.current.Store(&v)
	if was.At.Equal(v.At) { // the policy was restored
		p.bucket.log.Info("policy restored", "revision", v.Revision)
	} else {
		p.lost.Store(nil)
	}
	p.bucket.log.Info("policy changed", "revision", v.Revision, "author", v.Author, "rules", v.Document.Len())
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Apply puts a policy in force everywhere, also in this process, as soon as Run hears of it. A document that is not valid
// is refused whole; its error wraps policy.ErrInvalid and names what is wrong. Others: ErrField, ErrConflict,
// ErrDisconnected.
func (p *Policies) Apply(ctx context.Context, c Change) (Version, error) { return p.apply(ctx, c, 0) }

// Rollback puts the text of an earlier version in force again, as a new version. ErrNoVersion, and the errors of Apply.
func (p *Policies) Rollback(ctx context.Context, revision uint64, author, comment string) (Version, error) {
	old, err := p.Get(ctx, revision)
	if err != nil {
		return Version{}, err
	}
	return p.apply(ctx, Change{Text: old.Text, Author: author, Comment: comment}, revision)
}

func (p *Policies) apply(ctx context.Context, c Change, from uint64) (Version, error) {
	doc, err := policy.Parse(c.Text)
	if err != nil {
		return Version{}, err
	}
	if err := c.check(p.bucket.nc.MaxPayload()); err != nil {
		return Version{}, err
	}
	if err := p.bucket.writable(); err != nil {
		return Version{}, err
	}
	v := Version{
		At: time.Now().Round(0).UTC(), Author: c.Author, Comment: c.Comment, From: from, Text: slices.Clone(c.Text), Document: doc,
	}
	value, err := encodeVersion(v)
	if err != nil {
		return Version{}, err
	}
	if c.Expect == 0 {
		v.Revision, err = p.bucket.kv.Put(ctx, policyKey, value)
	} else {
		v.Revision, err = p.bucket.kv.Update(ctx, policyKey, value, c.Expect)
	}
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) || errors.Is(err, jetstream.ErrKeyExists) {
		return Version{}, fmt.Errorf("%w: revision %d is in force no more", ErrConflict, c.Expect)
	}
	if err != nil {
		return Version{}, fmt.Errorf("apply policy: %w", err)
	}
	p.save(v) // Run saves it as well, perhaps later than a crash
	return v, nil
}

// History lists versions, the newest first, without Text and Document; limit 0 means all that are kept.
func (p *Policies) History(ctx context.Context, limit int) ([]Version, error) {
	versions, err := p.history(ctx, limit)
	for i := range versions {
		versions[i].Text = nil
	}
	return versions, err
}

// history lists versions without their Document: parsing all of them for a list would take a thousand times as long.
func (p *Policies) history(ctx context.Context, limit int) ([]Version, error) {
	entries, err := p.bucket.kv.History(ctx, policyKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read policy history: %w", err)
	}
	slices.Reverse(entries)
	versions := make([]Version, 0, len(entries))
	for _, e := range entries {
		if e.Operation() != jetstream.KeyValuePut {
			continue
		}
		if limit > 0 && len(versions) == limit {
			break
		}
		v, err := decodeRecord(e)
		if err != nil {
			v.Revision = e.Revision()
		}
		versions = append(versions, v)
	}
	return versions, nil
}

// Get returns one version of the history, without its Document. ErrNoVersion.
func (p *Policies) Get(ctx context.Context, revision uint64) (Version, error) {
	if revision == 0 { // to NATS, zero is the latest
		return Version{}, fmt.Errorf("%w: 0", ErrNoVersion)
	}
	e, err := p.bucket.kv.GetRevision(ctx, policyKey, revision)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Version{}, fmt.Errorf("%w: %d", ErrNoVersion, revision)
	}
	if err != nil {
		return Version{}, fmt.Errorf("read policy version %d: %w", revision, err)
	}
	return decodeRecord(e)
}
