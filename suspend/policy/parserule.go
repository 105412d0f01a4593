package policy

import (
	"fmt"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/limit"
)

// ruleOf is the reader of a section's entries.
func (p *parser) ruleOf(section Section) func(n *yaml.Node, path string) {
	return func(n *yaml.Node, path string) {
		e := p.entry(n, path, "a rule of "+section.String(), section.keys())
		rp := &ruleParser{entry: e, rule: &Rule{Section: section, File: p.file, Line: n.Line}}
		rp.selector()
		rp.rule.Shadow = e.boolean("shadow")
		rp.limits()
		if e.good() && n.Kind == yaml.MappingNode {
			rp.finish()
		}
	}
}

// ruleParser reads one entry that sets limits.
type ruleParser struct {
	*entry
	rule *Rule
}

func (rp *ruleParser) selector() {
	r := rp.rule
	r.User = rp.name("user", lite.CheckUser, true)
	r.Model = rp.name("model", lite.CheckModel, true)
	r.Importance = rp.level("level")
}

func (rp *ruleParser) limits() {
	for i := range limitKeys {
		rp.limit(&limitKeys[i])
	}
	if rp.has(adaptiveKey) {
		rp.adaptive()
	}
	if o := rp.rule.Observed; o != nil && rp.good() { // its keys have bounds together
		if err := o.Validate(); err != nil {
			rp.wrong("observed", "%v", err)
		}
	}
}

func (rp *ruleParser) limit(k *limitKey) {
	r := rp.rule
	s, ok := rp.scalar(k.name)
	switch {
	case !ok:
	case r.Shadow && neverShadow.Has(k.kind):
		rp.wrong(k.name, "holds nothing back, so there is nothing to count in shadow")
	case k.refines != "" && !r.limits(k.kind):
		if rp.good() { // else the limit is there, and wrong
			rp.wrong(k.name, "%s, and this rule sets none", k.refines)
		}
	default:
		r.Sets |= k.kind
		if err := k.set(r, s); err != nil {
			rp.wrong(k.name, "%v", err)
		}
	}
}

// set reads a value into the rule.
func (k *limitKey) set(r *Rule, s string) error {
	if k.kind == KindWindow && k.refines == "" && r.Section != Cells {
		r.WindowAt = Release
	}
	switch {
	case s != unlimited || k.refines != "" || k.kind == KindWeight:
		return k.read(r, s)
	case k.kind == KindInFlight && r.Section == Cells:
		r.InFlight = anyInFlight
	}
	return nil
}

// limits reports whether there is a limit of this kind.
func (l *Limits) limits(kind Kinds) bool {
	switch kind {
	case KindRate:
		return l.Leaky != nil
	case KindWindow:
		return l.Window != nil
	case KindQuota:
		return l.Quota != nil
	case KindObserved:
		return l.Observed != nil
	case KindInFlight:
		return l.InFlight > 0
	case KindTokens:
		return l.Tokens != nil
	case KindBytesIn:
		return l.BytesIn != nil
	case KindBytesOut:
		return l.BytesOut != nil
	case KindAdaptive:
		return l.Adaptive != nil
	case KindDepth:
		return l.Depth > 0
	case KindDepthBytes:
		return l.DepthBytes > 0
	case KindDeadline:
		return l.Deadline > 0
	case KindWeight:
		return l.Weight > 0
	default: // a set of several kinds
		return false
	}
}

func (rp *ruleParser) adaptive() {
	r := rp.rule
	r.Sets |= KindAdaptive
	n := rp.values[adaptiveKey]
	if n.Kind == yaml.ScalarNode && n.Value == unlimited {
		return
	}
	e := rp.parser.entry(n, rp.at(adaptiveKey), adaptiveKey, adaptiveKeys[:])
	if n.Kind != yaml.MappingNode {
		return
	}
	e.required("max")
	a := &limit.Adaptive{
		Min:      e.whole64("min", 1, MaxInFlight),
		Max:      e.whole64("max", 1, MaxInFlight),
		Start:    e.whole64("start", 1, MaxInFlight),
		Latency:  e.duration("latency", time.Millisecond, limit.MaxWindow, 0),
		Decrease: int(e.fraction("decrease", 0)),
		Cooldown: e.duration("cooldown", time.Millisecond, limit.MaxWindow, 0),
	}
	if e.has("decrease") && (a.Decrease < 1 || a.Decrease >= full) {
		e.wrong("decrease", "is what is kept of the window, it must be between 0 and 1")
	}
	if !e.good() {
		return
	}
	if err := a.Validate(); err != nil {
		e.whole("%v", err)
	}
	r.Adaptive = a
}

// finish checks what no single key can show, and adds the rule.
func (rp *ruleParser) finish() {
	r := rp.rule
	if r.Section == Levels {
		rp.required("level")
	}
	switch {
	case !rp.good():
		return
	case r.Section == Cells && r.Level() == NoLevel:
		rp.whole("names neither a user nor a model")
		return
	case r.Section == Rows && r.User == "":
		rp.whole("names no user")
		return
	case r.Section == Columns && r.Model == "":
		rp.whole("names no model")
		return
	case r.Sets == 0:
		rp.whole("sets no limit, want at least one such as rate or in_flight")
		return
	}
	rs := &rp.doc.enforced
	kind := ""
	if r.Shadow {
		rs, kind = &rp.doc.shadow, " in shadow"
	}
	if first := rs.put(r); first != nil {
		rp.whole("%s has a rule%s already in %s", r.Name(), kind, position(first.File, first.Line))
	}
}

// importance reads one entry of importance.
func (p *parser) importance(n *yaml.Node, path string) {
	e := p.entry(n, path, "an entry of importance", importanceKeys[:])
	if n.Kind != yaml.MappingNode {
		return
	}
	e.required("level")
	i := Importance{
		Selector: Selector{User: e.name("user", lite.CheckUser, false), Model: e.name("model", lite.CheckModel, false)},
		Key:      e.name("key", checkKey, false),
		Level:    e.level("level"), File: p.file, Line: n.Line,
	}
	switch {
	case !e.good():
	case i.Key != "" && i.Selector != Selector{}:
		e.whole("names a key beside a user or a model; a key's level holds for all that is sent with it")
	case i.Key == "" && i.Selector == Selector{}:
		e.whole("names no user, model or key; for all that is named nowhere, there is default_level")
	case p.once(n, "importance "+strconv.Quote(i.Key)+i.String(), path, i.Name()+" "):
		p.doc.addImportance(i)
	}
}

// checkKey is for names of API keys, which are bounded as users are.
func checkKey(s string) error {
	if lite.CheckUser(s) != nil {
		return fmt.Errorf("%.64q is not the name of a key: 1 to %d bytes of text, without space at either end, and not the wildcard", s, lite.MaxUserBytes)
	}
	return nil
}
