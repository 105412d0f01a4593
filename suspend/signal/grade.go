package signal

import "math"

// DeadBandPermille is by how much of itself a graded factor must be wrong before it moves. A metric that trembles at its
// target changes nothing.
const DeadBandPermille = 100

// Grade is the factor in permille for a backend whose metric stands at value and should not exceed target:
//
//	factor = target / value, at least floor and at most Full
//
// last is the factor in force. It stays if the new one is within DeadBandPermille of it. The comparison is made before
// the factor is clamped: a load far below its target lets go of the last few permille, too. A value of 0 or less is no load.
// REQUIRES: target > 0; neither is NaN.
func Grade(last, floor int64, value, target float64) int64 {
	raw := math.Inf(1)
	if value > 0 {
		raw = Full * target / value
	}
	if math.Abs(raw-float64(last)) < float64(last)*DeadBandPermille/Full {
		return last
	}
	return int64(min(max(raw, float64(floor)), Full)) // rounded down: rather a permille too little
}
