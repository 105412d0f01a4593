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

// errFailing is the error of Check while JetStream takes no writes.
var errFailing = errors.New("JetStream takes no writes")

// useSlots is the number of slots into which the life of a record is divided.
const useSlots = 24

// userUse counts the records and bytes of each user in the store, of all gateways, from the headers of the records.
// Records leave the store by age, without a notification, so each user has a ring of slots by the time at which its
// records were made, and a slot older than the TTL counts no more. A count lags by at most 1/24 of the TTL.
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

// add counts a change of user's records at the time of the record.
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
		return // older than every slot
	case s.index < index:
		*s = useSlot{index: index}
	}
	s.records += records
	s.bytes += bytes
}

// of returns the use of user. A user without records is dropped.
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

// sweep drops users without records.
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
	// sweepEvery is the pause between two sweeps.
	sweepEvery = time.Minute
)

// Run counts the use of each user until ctx is done, and then returns nil. Without Run, and until it has read the existing
// records, users have no bound. It must be called once.
func (s *Store) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		_ = s.count(ctx) // the store is unreachable: keep the counts and try again
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
	there := info.State.LastSeq // existing records are counted whole, later ones by their changes
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
