package policy

import (
	"strconv"
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// limitKey is one key of a rule that says something about a limit: how it is read and how it is written.
//
// To add a kind of limit: a Kinds constant, a field of Limits and of Sources, a line here (and one in take), the key in
// schema.json.
type limitKey struct {
	name string
	kind Kinds
	// refines is what to say when a rule has this key and no limit of its kind; empty for the key that sets the limit.
	refines string
	word    string // of a key that refines: what stands before its value where the limit is one line, as in "5/s burst 1s"
	// read takes the value, which is not "unlimited"; on a key that refines, the limit is already there.
	read func(r *Rule, s string) error
	// write is the inverse; empty if the key is not to be written. For a key that sets a limit, the limit is there.
	write func(l *Limits) string
}

// limitKeys are all of them but adaptive, which is a mapping. A key that refines stands behind the one it refines.
var limitKeys = [...]limitKey{
	{
		name: "rate", kind: KindRate,
		read: readRate, write: func(l *Limits) string { return l.Leaky.Rate.String() },
	},
	{
		name: "burst", kind: KindRate, refines: "is the tolerance of a rate", word: "burst",
		read: readBurst, write: writeBurst,
	},
	{
		name: "window", kind: KindWindow,
		read: readWindow, write: func(l *Limits) string { return l.Window.String() },
	},
	{
		name: "window_at", kind: KindWindow, refines: "says where a window is asked", word: "at",
		read: readWindowAt, write: writeWindowAt,
	},
	{
		name: "quota", kind: KindQuota,
		read: readQuota, write: func(l *Limits) string { return l.Quota.Rate.String() },
	},
	{
		name: "quota_burst", kind: KindQuota, refines: "is the capacity of a quota", word: "burst",
		read: readQuotaBurst, write: writeQuotaBurst,
	},
	{
		name: "observed", kind: KindObserved,
		read: readObserved, write: func(l *Limits) string { return l.Observed.Rate.String() },
	},
	{
		name: "samples", kind: KindObserved, refines: "says over what a rate is observed", word: "samples",
		read: readSamples, write: writeSamples,
	},
	{
		name: "observed_cap", kind: KindObserved, refines: "bounds the wait of an observed rate", word: "cap",
		read: readObservedCap, write: writeObservedCap,
	},
	{
		name: "in_flight", kind: KindInFlight,
		read: readInFlight, write: writeInFlight,
	},
	{
		name: "tokens", kind: KindTokens,
		read: readTokens, write: func(l *Limits) string { return l.Tokens.String() },
	},
	{
		name: "bytes_in", kind: KindBytesIn,
		read: readBytesIn, write: func(l *Limits) string { return formatByteRate(l.BytesIn.Rate) },
	},
	{
		name: "bytes_out", kind: KindBytesOut,
		read: readBytesOut, write: func(l *Limits) string { return formatByteRate(l.BytesOut.Rate) },
	},
	{
		name: "depth", kind: KindDepth,
		read: readDepth, write: func(l *Limits) string { return strconv.FormatInt(l.Depth, 10) },
	},
	{
		name: "depth_bytes", kind: KindDepthBytes,
		read: readDepthBytes, write: func(l *Limits) string { return formatBytes(l.DepthBytes) },
	},
	{
		name: "deadline", kind: KindDeadline,
		read: readDeadline, write: func(l *Limits) string { return formatDuration(l.Deadline) },
	},
	{
		name: "weight", kind: KindWeight,
		read: readWeight, write: func(l *Limits) string { return strconv.Itoa(int(l.Weight)) },
	},
}

const adaptiveKey = "adaptive"

// adaptiveKeys are those of the mapping.
var adaptiveKeys = [...]string{"min", "max", "start", "latency", "decrease", "cooldown"}

// allowed are the kinds that rules of a section may set.
func (s Section) allowed(shadow bool) Kinds {
	kinds := gates
	if s != Columns {
		kinds &^= KindAdaptive
	}
	if s == Cells {
		kinds |= cellOnly
	}
	if shadow {
		kinds &^= neverShadow
	}
	return kinds
}

// keys are the keys that a rule of a section may have.
func (s Section) keys() []string {
	var names []string
	switch s {
	case Cells:
		names = append(names, "user", "model")
	case Rows:
		names = append(names, "user")
	case Columns:
		names = append(names, "model")
	case Levels:
		names = append(names, "level")
	case Broker:
	}
	allowed := s.allowed(false)
	for i := range limitKeys {
		if allowed.Has(limitKeys[i].kind) {
			names = append(names, limitKeys[i].name)
		}
	}
	if allowed.Has(KindAdaptive) {
		names = append(names, adaptiveKey)
	}
	return append(names, "shadow")
}

func readRate(r *Rule, s string) error {
	rate, err := limit.ParseRate(s)
	r.Leaky = &limit.LeakyBucket{Rate: rate}
	return err
}

func readBurst(r *Rule, s string) (err error) {
	r.Leaky.Burst, err = parseDuration(s, 0, limit.MaxWindow)
	return err
}

func writeBurst(l *Limits) string { return orEmpty(l.Leaky.Burst) }

func readWindow(r *Rule, s string) error {
	w, err := limit.ParseFixedWindow(s)
	r.Window = &w
	return err
}

func readQuota(r *Rule, s string) error {
	rate, err := limit.ParseRate(s)
	r.Quota = &limit.TokenBucket{Rate: rate}
	return err
}

func readQuotaBurst(r *Rule, s string) (err error) {
	r.Quota.Capacity, err = parseWhole(s, 1, limit.MaxLimit)
	return err
}

func writeQuotaBurst(l *Limits) string {
	if l.Quota.Capacity == 0 {
		return ""
	}
	return strconv.FormatInt(l.Quota.Capacity, 10)
}

func readInFlight(r *Rule, s string) (err error) {
	r.InFlight, err = parseCount(s, MaxInFlight)
	return err
}

func writeInFlight(l *Limits) string {
	if l.InFlight == anyInFlight {
		return unlimited
	}
	return strconv.FormatInt(l.InFlight, 10)
}

func readTokens(r *Rule, s string) error {
	w, err := limit.ParseTokenWindow(s)
	r.Tokens = &w
	return err
}

func readBytesIn(r *Rule, s string) error {
	rate, err := limit.ParseByteRate(s)
	r.BytesIn = &limit.TokenBucket{Rate: rate}
	return err
}

func readBytesOut(r *Rule, s string) error {
	rate, err := limit.ParseByteRate(s)
	r.BytesOut = &limit.TokenBucket{Rate: rate}
	return err
}

func readDepth(r *Rule, s string) (err error) {
	r.Depth, err = parseCount(s, MaxDepth)
	return err
}

func readDepthBytes(r *Rule, s string) (err error) {
	r.DepthBytes, err = parseBytes(s)
	return err
}

func readDeadline(r *Rule, s string) (err error) {
	r.Deadline, err = parseDuration(s, MinDeadline, MaxDeadline)
	return err
}

func readWeight(r *Rule, s string) error {
	n, err := parseWhole(s, 1, MaxWeight)
	r.Weight = uint16(n)
	return err
}

func orEmpty(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return formatDuration(d)
}
