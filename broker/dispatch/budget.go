package dispatch

// shares bound the work of one turn, separately for each kind of work: no turn is long when
// much falls due at one instant, and no kind of work delays another. The rest of the work
// comes first in the next turn, which NextWake makes begin at once; other events have their
// turns in between.
type shares struct {
	// Clients that fell silent, holds that end, leases that end or are renewed,
	// limits that may have opened, buckets to review, polls to end.
	clients, holds, leases, limits, reviews, polls int
	// looks are tries to deliver a bucket's next message, gates are buckets released by
	// opening gates.
	looks, gates int
	// expiries are ranges of messages past their deadline.
	expiries int
}

// turnShares take a few milliseconds when one turn uses all of them: one to three
// microseconds for each unit, with its writes.
var turnShares = shares{clients: 64, holds: 256, leases: 256, limits: 256, reviews: 256, polls: 512, looks: 512, gates: 1024, expiries: 256}

// spend takes one unit of a share; false if the share is used up.
func spend(left *int) bool {
	if *left <= 0 {
		return false
	}
	*left--
	return true
}
