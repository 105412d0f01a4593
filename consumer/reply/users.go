package reply

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// errFailing is what Check says while JetStream takes no writes.
var errFailing = errors.New("JetStream takes no writes")

// useSlots is into how many parts the life of a record is cut.
const useSlots = 24

// userUse counts what each user has in the store, of all gateways. It is read from the headers of the records as they come.
// Records leave the store by age, and nobody is told; so each user has a ring of slots by the time at which its
// records were made, and a slot that is older than a record may be counts no more. A count is so at most 1/24 of the TTL
// behind.
//
// It holds about half a kilobyte for each user that has a record.
type userUse struct {
	slot time.Duration

	mu    sync.Mutex // guards the following field
	users map[string]*useRing
}

type useRing [useSlots]useSlot

type useSlot struct {
	index   int64 // the time of the slot, counted in slots
	records int64
	bytes   int64
}

func newUserUse(ttl time.Duration) *userUse {
	return &userUse{slot: max(ttl/(useSlots-1), time.Second), users: make(map[string]*useRing)}
}

// add counts for user at the time of a record.
func (u *userUse) add(user string, at time.Time, records, bytes int64) {
	index := at.UnixNano() / int64(u.slot)
	u.mu.Lock()
	defer u.mu.Unlock()
	ring := u.users[user]
	if ring == nil {
		ring = new(useRing)
		u.users[user] = ring
	}
	s := &ring[index%useSlots]
	switch {
	case s.index > index:
		return // older than all that counts
	case s.index < index:
		*s = useSlot{index: index}
	}
	s.records += records
	s.bytes += bytes
}

// of is what user has. A user that has nothing is forgotten.
func (u *userUse) of(user string, now time.Time) (records, bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	ring := u.users[user]
	if ring == nil {
		return 0, 0
	}
	records, bytes = ring.sum(now.UnixNano() / int64(u.slot))
	if records == 0 && bytes == 0 {
		delete(u.users, user)
	}
	return records, bytes
}

func (r *useRing) sum(now int64) (records, bytes int64) {
	for i := range r {
		if now-r[i].index < useSlots {
			records += r[i].records
			bytes += r[i].bytes
		}
	}
	return max(records, 0), max(bytes, 0)
}

// sweep forgets users that have nothing.
func (u *userUse) sweep(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for user, ring := range u.users {
		if records, bytes := ring.sum(now.UnixNano() / int64(u.slot)); records == 0 && bytes == 0 {
			delete(u.users, user)
		}
	}
}

func (u *userUse) reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.users)
}

const (
	runRetry = time.Second
	// sweepEvery is how often users are looked through for those that have nothing any more.
	sweepEvery = time.Minute
)

// Run counts what users have in the store until ctx is done, and then returns nil. Without it, and until it has read what
// is there, users have no bound. It is to be called once.
func (s *Store) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		_ = s.count(ctx) // the store is away: the counts of before stay, and it is tried again
		select {
		case <-ctx.Done():
		case <-time.After(runRetry):
		}
	}
	return nil
}

func (s *Store) count(ctx context.Context) error {
	info, err := s.recordStream.Info(ctx)
	if err != nil {
		return err
	}
	records, err := s.recordStream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubjects: []string{"$KV." + recordBucket + ".>"}, HeadersOnly: true,
	})
	if err != nil {
		return err
	}
	s.users.reset()
	there := info.State.LastSeq // what is there now is counted whole, what comes is counted as it changes
	messages, err := records.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for swept := time.Now(); ; {
		next, err := messages.Next()
		if err != nil {
			return fmt.Errorf("read %s: %w", recordBucket, err)
		}
		s.countOne(next, there)
		if now := time.Now(); now.Sub(swept) > sweepEvery {
			s.users.sweep(now)
			swept = now
		}
	}
}

func (s *Store) countOne(m jetstream.Msg, there uint64) {
	meta, err := m.Metadata()
	if err != nil {
		return
	}
	user, err := url.QueryUnescape(m.Headers().Get(headerUser))
	if err != nil || user == "" {
		return // written by an earlier version, or by hand
	}
	total, err := strconv.ParseInt(m.Headers().Get(headerBytes), 10, 64)
	if err != nil {
		return
	}
	grew, err := strconv.ParseInt(m.Headers().Get(headerGrew), 10, 64)
	if err == nil && meta.Sequence.Stream > there {
		s.users.add(user, meta.Timestamp, 0, grew)
		return
	}
	s.users.add(user, meta.Timestamp, 1, total)
}
