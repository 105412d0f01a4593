package policy

import (
	"strconv"
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// Enforce says where a fixed window is asked.
type Enforce uint8

const (
	// Admission: the gateway asks before it accepts a request, and answers 429. The default of cells.
	Admission Enforce = iota
	// Release: the window is asked before a request is forwarded; the request waits in its bucket. The default of rows,
	// columns, levels and the broker.
	Release
)

func (e Enforce) String() string {
	if e == Release {
		return "release"
	}
	return "admission"
}

// Limits is what holds for one cell, row, column, level or broker. The pointers are shared with the document: read only.
// Nil and 0 mean that there is no such limit.
type Limits struct {
	Leaky      *limit.LeakyBucket
	Window     *limit.FixedWindow
	WindowAt   Enforce
	Quota      *limit.TokenBucket
	Observed   *limit.ObservedRate
	InFlight   int64 // most messages out at once; of a cell, 0: what its consumer group says, and MaxInFlight+1: any number
	Tokens     *limit.TokenWindow
	BytesIn    *limit.TokenBucket // of requests
	BytesOut   *limit.TokenBucket // of answers
	Adaptive   *limit.Adaptive    // columns only
	Depth      int64              // most messages queued
	DepthBytes int64              // most bytes queued
	Deadline   time.Duration      // longest time a message may be queued
	Weight     uint16             // share of turns among the cells of a level, relative to theirs; 0: 1
	From       Sources
}

// Sources tells for each kind of limit which rule decided it.
type Sources struct {
	Leaky, Window, Quota, Observed, InFlight, Tokens, BytesIn, BytesOut, Adaptive Source
	Depth, DepthBytes, Deadline, Weight                                           Source
}

// Source is the rule that decided a limit. The zero Source: no rule did, so there is no such limit.
type Source struct{ rule *Rule }

// Level is the precedence of the rule; NoLevel if there is none, or it is no rule of a cell.
func (s Source) Level() Level {
	if s.rule == nil || s.rule.Section != Cells {
		return NoLevel
	}
	return s.rule.Level()
}

// Line is where the rule begins in its file or document; 0 if there is none.
func (s Source) Line() int {
	if s.rule == nil {
		return 0
	}
	return s.rule.Line
}

// File is the file of a directory that the rule stands in; empty for other documents.
func (s Source) File() string {
	if s.rule == nil {
		return ""
	}
	return s.rule.File
}

// String is the source in words: "none", a level of the precedence such as "user+default model", "row", "default row",
// "column", "default column", "level 2" or "broker".
func (s Source) String() string {
	switch r := s.rule; {
	case r == nil:
		return NoLevel.String()
	case r.Section == Cells:
		return r.Level().String()
	case r.Section == Rows && r.User == wildcard:
		return "default row"
	case r.Section == Rows:
		return "row"
	case r.Section == Columns && r.Model == wildcard:
		return "default column"
	case r.Section == Columns:
		return "column"
	case r.Section == Levels:
		return "level " + strconv.Itoa(int(r.Importance))
	}
	return Broker.String()
}

// AtAdmission is the window that the gateway asks before it lets a request in; nil if there is none, or it is asked at
// release.
func (l Limits) AtAdmission() *limit.FixedWindow {
	if l.WindowAt == Admission {
		return l.Window
	}
	return nil
}

// take copies the given kinds from a rule.
func (l *Limits) take(r *Rule, kinds Kinds) {
	from := Source{r}
	if kinds.Has(KindRate) {
		l.Leaky, l.From.Leaky = r.Leaky, from
	}
	if kinds.Has(KindWindow) {
		l.Window, l.WindowAt, l.From.Window = r.Window, r.WindowAt, from
	}
	if kinds.Has(KindQuota) {
		l.Quota, l.From.Quota = r.Quota, from
	}
	if kinds.Has(KindObserved) {
		l.Observed, l.From.Observed = r.Observed, from
	}
	if kinds.Has(KindInFlight) {
		l.InFlight, l.From.InFlight = r.InFlight, from
	}
	if kinds.Has(KindTokens) {
		l.Tokens, l.From.Tokens = r.Tokens, from
	}
	if kinds.Has(KindBytesIn) {
		l.BytesIn, l.From.BytesIn = r.BytesIn, from
	}
	if kinds.Has(KindBytesOut) {
		l.BytesOut, l.From.BytesOut = r.BytesOut, from
	}
	if kinds.Has(KindAdaptive) {
		l.Adaptive, l.From.Adaptive = r.Adaptive, from
	}
	if kinds&cellOnly != 0 {
		l.takeCellOnly(r, kinds)
	}
}

func (l *Limits) takeCellOnly(r *Rule, kinds Kinds) {
	from := Source{r}
	if kinds.Has(KindDepth) {
		l.Depth, l.From.Depth = r.Depth, from
	}
	if kinds.Has(KindDepthBytes) {
		l.DepthBytes, l.From.DepthBytes = r.DepthBytes, from
	}
	if kinds.Has(KindDeadline) {
		l.Deadline, l.From.Deadline = r.Deadline, from
	}
	if kinds.Has(KindWeight) {
		l.Weight, l.From.Weight = r.Weight, from
	}
}
