package dispatch

// shares bound what one turn does, each kind of work by itself: so no turn is long,
// whatever falls due at one instant, and no kind of work waits for another one to be
// done. What is left is first in the next turn, which NextWake has begin at once;
// other events have their turns in between.
type shares struct {
	// clients that have been silent, holds that end, leases that end or are renewed,
	// limits that may have opened, buckets to be reviewed, polls to be ended.
	clients, holds, leases, limits, reviews, polls int
	// looks are turns of buckets to hand out a message, gates are buckets let go from
	// gates that open.
	looks, gates int
	// expiries are stretches of messages that are past their deadline.
	expiries int
}

// turnShares are a few milliseconds if all of them are used up in one turn: one to
// three microseconds for each, with its writes.
var turnShares = shares{clients: 64, holds: 256, leases: 256, limits: 256, reviews: 256, polls: 512, looks: 512, gates: 1024, expiries: 256}

// spend takes one from what is left of a share; false if nothing is.
func spend(left *int) bool {
	if *left <= 0 {
		return false
	}
	*left--
	return true
}
