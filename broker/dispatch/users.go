package dispatch

import (
	"hash/maphash"
	"time"

	"github.com/penstockmq/penstock/suspend/quota"
)

// userSlots is the length of a row of userCounts; a power of two.
const userSlots = 1 << 18

// userCounts counts the buckets of each user in a fixed 2 MiB: an idle bucket costs no
// memory, and a map of all users would. It is a count-min sketch (Cormode and
// Muthukrishnan, 2005): a user has a slot in each of two rows and shares it with the other
// users that hash to it; the smaller slot is its count. So a count is never too low. It is
// too high by about the number of buckets over userSlots: 4 with a million buckets, 40 with
// ten million.
type userCounts struct {
	seed maphash.Seed
	rows *[2][userSlots]uint32 // nil before the first bucket
}

func (u *userCounts) slots(user string) (a, b *uint32) {
	if u.rows == nil {
		u.seed, u.rows = maphash.MakeSeed(), new([2][userSlots]uint32)
	}
	h := maphash.String(u.seed, user)
	return &u.rows[0][h%userSlots], &u.rows[1][h>>32%userSlots]
}

func (u *userCounts) count(user string) int {
	if u.rows == nil {
		return 0
	}
	a, b := u.slots(user)
	return int(min(*a, *b))
}

func (u *userCounts) created(user string) {
	a, b := u.slots(user)
	*a++
	*b++
}

// deleted uncounts a bucket. REQUIRES: created was called for the bucket.
func (u *userCounts) deleted(user string) {
	a, b := u.slots(user)
	*a--
	*b--
}

// Life returns the TTL of an idle bucket; 0 is forever. A bucket without a served message
// lives shorter: otherwise each model name that a caller makes up would take one of
// MaxBuckets places for the whole TTL.
func (m *Machine) Life(served bool) time.Duration {
	ttl := m.cfg.TTL
	if short := m.cfg.UnservedTTL; !served && short > 0 && (ttl == 0 || short < ttl) {
		return short
	}
	return ttl
}

// serves reports whether an ack proves that the message was served. An ack without usage is
// taken as served; an ack with zero usage belongs to a request that no model took.
func serves(learned quota.Settlement) bool {
	return learned.Outcome == quota.Unknown || learned.Outcome == quota.Used && learned.Tokens != 0
}
