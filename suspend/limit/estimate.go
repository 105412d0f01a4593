package limit

// DefaultOutput is how many tokens an answer is expected to have if nothing is known: no ceiling, and none observed.
const DefaultOutput = 256

// MaxOutput is the largest number of tokens that an Estimate takes one answer to have.
const MaxOutput = 1 << 40

// Estimate is the number of output tokens to expect of a cell's next answer: an exponentially weighted moving average of
// those it had,
//
//	mean' = mean + (n - mean)/8, and the first n as it is
//
// with the gain of TCP's smoothed round-trip time (Jacobson & Karels 1988; RFC 6298, section 2), in integers. What it is
// wrong by is settled when the answer has ended, so the mean is enough; a margin for the spread would only hold back
// asks that could pass. The zero value has observed nothing.
type Estimate struct {
	// Mean is the mean in 1/256 of a token, plus 1; 0: none was observed.
	Mean int64
}

const (
	estimateUnit = 256
	estimateGain = 8
)

// Expect is how many tokens to reserve for an answer of at most ceiling tokens; a ceiling of 0 or less is none. Without a
// past that is the ceiling itself, or DefaultOutput if there is none.
func (e Estimate) Expect(ceiling int64) int64 {
	switch {
	case e.Mean <= 0 && ceiling > 0:
		return ceiling
	case e.Mean <= 0:
		return DefaultOutput
	}
	mean := (e.Mean - 1 + estimateUnit - 1) / estimateUnit // rounded up
	if ceiling > 0 {
		return min(mean, ceiling)
	}
	return mean
}

// Observe is the estimate after an answer of n tokens; n counts as at least 0 and at most MaxOutput.
func (e Estimate) Observe(n int64) Estimate {
	sample := min(max(n, 0), MaxOutput) * estimateUnit
	if e.Mean <= 0 {
		return Estimate{Mean: sample + 1}
	}
	mean := min(e.Mean-1, MaxOutput*estimateUnit)
	return Estimate{Mean: mean + floorDiv(sample-mean, estimateGain) + 1}
}
