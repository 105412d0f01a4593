package policy

import "strings"

// Text is a rule in the words of a document; what is not set is empty. It is what the command line and the admin API
// show.
type Text struct {
	Section     string `json:"section,omitempty"` // "rows", "columns", "levels" or "broker"; empty for cells
	User        string `json:"user,omitempty"`
	Model       string `json:"model,omitempty"`
	Level       string `json:"level,omitempty"`
	Rate        string `json:"rate,omitempty"`
	Burst       string `json:"burst,omitempty"`
	Window      string `json:"window,omitempty"`
	WindowAt    string `json:"window_at,omitempty"`
	Quota       string `json:"quota,omitempty"`
	QuotaBurst  string `json:"quota_burst,omitempty"`
	Observed    string `json:"observed,omitempty"`
	Samples     string `json:"samples,omitempty"`
	ObservedCap string `json:"observed_cap,omitempty"`
	InFlight    string `json:"in_flight,omitempty"`
	Tokens      string `json:"tokens,omitempty"`
	BytesIn     string `json:"bytes_in,omitempty"`
	BytesOut    string `json:"bytes_out,omitempty"`
	Adaptive    string `json:"adaptive,omitempty"` // "4..64 start 8 latency 2s"
	Depth       string `json:"depth,omitempty"`
	DepthBytes  string `json:"depth_bytes,omitempty"`
	Deadline    string `json:"deadline,omitempty"`
	Weight      string `json:"weight,omitempty"`
	Shadow      bool   `json:"shadow,omitempty"`
}

// Text is the rule in the words of a document.
func (r Rule) Text() Text {
	t := r.text(r.Sets)
	t.User, t.Model, t.Shadow = r.User, r.Model, r.Shadow
	if r.Section != Cells {
		t.Section = r.Section.String()
	}
	if r.Section == Levels {
		t.Level = levelName(r.Importance)
	}
	return t
}

func (l *Limits) text(of Kinds) Text {
	w := make(map[string]string)
	l.words(of, func(key, value string) { w[key] = value })
	t := Text{
		Rate: w["rate"], Burst: w["burst"], Window: w["window"], WindowAt: w["window_at"],
		Quota: w["quota"], QuotaBurst: w["quota_burst"],
		Observed: w["observed"], Samples: w["samples"], ObservedCap: w["observed_cap"],
		InFlight: w["in_flight"], Tokens: w["tokens"], BytesIn: w["bytes_in"], BytesOut: w["bytes_out"],
		Depth: w["depth"], DepthBytes: w["depth_bytes"], Deadline: w["deadline"], Weight: w["weight"],
	}
	if of.Has(KindAdaptive) {
		t.Adaptive = l.value(KindAdaptive)
	}
	return t
}

// words calls f for each key of the given kinds, in the order of a document, with "unlimited" where there is no limit; all but
// adaptive.
func (l *Limits) words(of Kinds, f func(key, value string)) {
	for i := range limitKeys {
		k := &limitKeys[i]
		switch {
		case !of.Has(k.kind):
		case !l.limits(k.kind):
			if k.refines == "" {
				f(k.name, unlimited)
			}
		default:
			if value := k.write(l); value != "" {
				f(k.name, value)
			}
		}
	}
}

// absent is what holds for a cell that has no limit of a kind.
func absent(kind Kinds) string {
	switch kind {
	case KindInFlight:
		return "default"
	case KindWeight:
		return "1"
	default:
		return unlimited
	}
}

// value is what holds of one kind in one line, such as "5/s burst 200ms".
func (l *Limits) value(kind Kinds) string {
	if kind == KindAdaptive {
		if l.Adaptive == nil {
			return unlimited
		}
		return l.Adaptive.String()
	}
	var b strings.Builder
	for i := range limitKeys {
		k := &limitKeys[i]
		switch {
		case k.kind != kind:
		case k.refines == "" && !l.limits(kind):
			return absent(kind)
		case k.refines == "":
			b.WriteString(k.write(l))
		default:
			if s := k.write(l); s != "" {
				b.WriteString(" " + k.word + " " + s)
			}
		}
	}
	return b.String()
}

// name is the key that sets limits of one kind.
func (ks Kinds) name() string {
	for i := range limitKeys {
		if limitKeys[i].kind == ks && limitKeys[i].refines == "" {
			return limitKeys[i].name
		}
	}
	return adaptiveKey
}

// Line is one kind of limit of a cell with the rule that decided it.
type Line struct {
	Limit string `json:"limit"` // "rate", "window", ...: the key in a document
	Value string `json:"value"` // "5/s", "100/1m", "unlimited"
	Level Level  `json:"-"`
	From  string `json:"from"`           // the level in words; "none" if no rule decided it
	File  string `json:"file,omitempty"` // of the rule, in a document of several files
	Line  int    `json:"line,omitempty"` // of the rule
}

// Explain lists each kind of limit of a cell, what it is and which level won.
func (l Limits) Explain() []Line {
	lines := make([]Line, 0, kinds)
	for kind := range cellKinds.each {
		from := l.From.of(kind)
		lines = append(lines, Line{
			Limit: kind.name(), Value: l.value(kind), Level: from.Level(), From: from.String(), File: from.File(), Line: from.Line(),
		})
	}
	return lines
}

// each yields the kinds in the set, one by one.
func (ks Kinds) each(yield func(Kinds) bool) {
	for k := Kinds(1); k < 1<<kinds; k <<= 1 {
		if ks.Has(k) && !yield(k) {
			return
		}
	}
}

// of is the source of one kind.
func (s *Sources) of(kind Kinds) Source {
	switch kind {
	case KindRate:
		return s.Leaky
	case KindWindow:
		return s.Window
	case KindQuota:
		return s.Quota
	case KindObserved:
		return s.Observed
	case KindInFlight:
		return s.InFlight
	case KindTokens:
		return s.Tokens
	case KindBytesIn:
		return s.BytesIn
	case KindBytesOut:
		return s.BytesOut
	case KindAdaptive:
		return s.Adaptive
	case KindDepth:
		return s.Depth
	case KindDepthBytes:
		return s.DepthBytes
	case KindDeadline:
		return s.Deadline
	case KindWeight:
		return s.Weight
	default: // a set of several kinds
		return Source{}
	}
}
