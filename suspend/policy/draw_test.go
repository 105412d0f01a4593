package policy

import (
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/limit"
)

// drawDocument draws a valid document of a few entries about few names, so that they meet.
func drawDocument(t *rapid.T) *Document {
	p := newParser()
	d := p.doc
	d.cost = CostUnit(rapid.IntRange(0, 2).Draw(t, "cost"))
	if d.levelSet = rapid.Bool().Draw(t, "level set"); d.levelSet {
		d.level = rapid.Uint8Range(0, lite.MaxLevel).Draw(t, "level")
	}
	for range rapid.IntRange(0, 14).Draw(t, "rules") {
		r := drawRule(t)
		rs := &d.enforced
		if r.Shadow {
			rs = &d.shadow
		}
		if r.Section != Cells || r.Level() != NoLevel {
			rs.put(r)
		}
	}
	for range rapid.IntRange(0, 5).Draw(t, "importances") {
		drawImportance(t, d)
	}
	drawSignals(t, d)
	return d
}

func drawName(t *rapid.T, label string) string {
	return rapid.SampledFrom([]string{"*", "a", "b", "tab: #c", "1", "é\U0001F600", "null", `"`}).Draw(t, label)
}

func drawRule(t *rapid.T) *Rule {
	r := &Rule{Section: Section(rapid.IntRange(0, sections-1).Draw(t, "section")), Shadow: rapid.Bool().Draw(t, "shadow")}
	switch r.Section {
	case Cells:
		if rapid.Bool().Draw(t, "with user") {
			r.User = drawName(t, "user")
		}
		if rapid.Bool().Draw(t, "with model") {
			r.Model = drawName(t, "model")
		}
	case Rows:
		r.User = drawName(t, "user")
	case Columns:
		r.Model = drawName(t, "model")
	case Levels:
		r.Importance = rapid.Uint8Range(0, lite.MaxLevel).Draw(t, "importance")
	case Broker:
	}
	var allowed []Kinds
	for kind := range r.Section.allowed(r.Shadow).each {
		allowed = append(allowed, kind)
	}
	for range rapid.IntRange(1, 5).Draw(t, "kinds") {
		kind := rapid.SampledFrom(allowed).Draw(t, "kind")
		if !r.Sets.Has(kind) {
			drawLimit(t, r, kind)
		}
	}
	return r
}

// drawLimit draws a limit of one kind, or none, for the rule to set.
func drawLimit(t *rapid.T, r *Rule, kind Kinds) {
	r.Sets |= kind
	limited := kind == KindWeight || rapid.Bool().Draw(t, "limited")
	if kind == KindWindow && r.Section != Cells {
		r.WindowAt = Release
	}
	if kind == KindInFlight && r.Section == Cells && !limited {
		r.InFlight = anyInFlight
	}
	if !limited {
		return
	}
	per := func() limit.Rate {
		return limit.Rate{
			Events: rapid.Int64Range(1, limit.MaxEvents).Draw(t, "events"),
			Per:    rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 90 * time.Minute, limit.MaxWindow}).Draw(t, "per"),
		}
	}
	n := func(most int64) int64 { return rapid.Int64Range(0, most).Draw(t, "n") }
	d := func() time.Duration { return time.Duration(n(int64(time.Hour))) / 1e6 * 1e6 }
	switch kind {
	case KindRate:
		r.Leaky = &limit.LeakyBucket{Rate: per(), Burst: time.Duration(n(1e10))}
	case KindWindow:
		r.Window = &limit.FixedWindow{Limit: 1 + n(1e11), Window: time.Millisecond + d()}
		r.WindowAt = Enforce(n(1))
	case KindQuota:
		r.Quota = &limit.TokenBucket{Rate: per(), Capacity: n(limit.MaxLimit)}
	case KindObserved:
		r.Observed = &limit.ObservedRate{Rate: limit.Rate{Events: 1 + n(9), Per: time.Second}, Samples: int(n(99)), Cap: d()}
		if r.Observed.Samples > 0 {
			r.Observed.Size = rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Minute}).Draw(t, "size")
		}
	case KindInFlight:
		r.InFlight = 1 + n(MaxInFlight-1)
	case KindTokens:
		r.Tokens = &limit.TokenWindow{Limit: 1 + n(1e9), Window: time.Second + d()}
	case KindBytesIn:
		r.BytesIn = &limit.TokenBucket{Rate: per()}
	case KindBytesOut:
		r.BytesOut = &limit.TokenBucket{Rate: limit.Rate{Events: 3 << 20, Per: time.Second}}
	case KindAdaptive:
		r.Adaptive = &limit.Adaptive{Min: n(10), Max: 20 + n(10), Start: 0, Latency: d(), Decrease: int(n(999)), Cooldown: d()}
		if n(1) == 1 {
			r.Adaptive.Start = 10 + n(10)
		}
	case KindDepth:
		r.Depth = 1 + n(MaxDepth-1)
	case KindDepthBytes:
		r.DepthBytes = 1 + n(MaxDepthBytes-1)
	case KindDeadline:
		r.Deadline = time.Millisecond + d()
	case KindWeight:
		r.Weight = uint16(1 + n(MaxWeight-1))
	default:
		t.Fatalf("no limit of kind %d", kind)
	}
}

func drawImportance(t *rapid.T, d *Document) {
	i := Importance{Level: rapid.Uint8Range(0, lite.MaxLevel).Draw(t, "level")}
	names := rapid.SampledFrom([]string{"a", "b", "0x1", "~"})
	switch rapid.IntRange(0, 3).Draw(t, "of") {
	case 0:
		i.Key = names.Draw(t, "key")
	case 1:
		i.User = names.Draw(t, "user")
	case 2:
		i.Model = names.Draw(t, "model")
	case 3:
		i.User, i.Model = names.Draw(t, "user"), names.Draw(t, "model")
	}
	d.addImportance(i)
}

// drawSignals draws signals and alarms of the columns and levels that have a limit.
func drawSignals(t *rapid.T, d *Document) {
	var of []Scaled
	for name := range d.enforced.columns {
		of = append(of, Scaled{Section: Columns, Name: name}, Scaled{Section: Columns, By: "model"})
	}
	for level := range d.enforced.levels {
		of = append(of, Scaled{Section: Levels, Name: levelName(uint8(level))})
	}
	permille := rapid.Int64Range(0, full)
	for i, o := range of {
		if o.Name == wildcard || !d.scalable(o) {
			continue
		}
		name := "n" + levelName(uint8(i))
		if rapid.Bool().Draw(t, "signal") {
			d.signals = append(d.signals, Signal{
				Name: name, Of: o, URL: "http://h:1/m?x=%20", Series: `s{a="b\"\n",c="d"}`,
				Target:   rapid.Float64Range(1e-9, 1e12).Draw(t, "target"),
				Interval: time.Second, StaleAfter: time.Minute,
				Floor: permille.Draw(t, "floor"), WhenStale: permille.Draw(t, "stale"), Aggregate: Aggregate(rapid.IntRange(0, 2).Draw(t, "agg")),
			})
		}
		if rapid.Bool().Draw(t, "alarm") {
			d.alarms = append(d.alarms, Alarm{
				Name: name, Of: o, Match: map[string]string{"true": "x\ny", "b": "1"}, Factor: permille.Draw(t, "factor"),
				For: time.Hour, HoldDown: time.Duration(rapid.IntRange(0, 9).Draw(t, "hold")) * time.Second,
			})
		}
	}
	d.sortSignals()
}
