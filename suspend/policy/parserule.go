package policy

import (
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/limit"
)

const ruleKeys = "user, model, rate, burst, window, window_at, depth and depth_bytes"

// unlimited is the value that ends the search for a limit without one.
const unlimited = "unlimited"

// ruleParser reads one entry of limits.
type ruleParser struct {
	*parser
	path string // "limits[3]"
	rule *Rule
	seen map[string]*yaml.Node // value of each key
}

func (p *parser) rule(n *yaml.Node, path string) {
	rp := &ruleParser{parser: p, path: path, rule: &Rule{Line: n.Line}, seen: make(map[string]*yaml.Node)}
	before := len(p.faults)
	p.mapping(n, path, path+".", rp.key)
	if len(p.faults) > before || n.Kind != yaml.MappingNode {
		return // what follows is about a whole entry, and would only repeat the faults of its parts
	}
	rp.burst()
	rp.windowAt()
	rp.whole(n)
}

func (rp *ruleParser) key(name string, key, value *yaml.Node) {
	rp.seen[name] = value
	switch name {
	case "user":
		rp.rule.User = rp.name(value, name, lite.CheckUser)
	case "model":
		rp.rule.Model = rp.name(value, name, lite.CheckModel)
	case "rate":
		rp.limit(value, name, Rate, rp.setRate)
	case "window":
		rp.limit(value, name, Window, rp.setWindow)
	case "depth":
		rp.limit(value, name, Depth, func(s string) (err error) {
			rp.rule.Depth, err = parseCount(s)
			return err
		})
	case "depth_bytes":
		rp.limit(value, name, DepthBytes, func(s string) (err error) {
			rp.rule.DepthBytes, err = parseBytes(s)
			return err
		})
	case "burst", "window_at": // read when the limit they belong to is known
	default:
		rp.fault(key, rp.path+"."+name, "unknown key, a rule has %s", ruleKeys)
	}
}

// name reads a user or a model. Text that YAML takes for something else, such as 0123 or true, would be a different
// name from the one that was meant, so it needs quotes.
func (rp *ruleParser) name(n *yaml.Node, key string, check func(string) error) string {
	path := rp.path + "." + key
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		rp.fault(n, path, "is %s, want text: put it in quotes", show(n))
		return ""
	}
	if n.Value == wildcard {
		return wildcard
	}
	if err := check(n.Value); err != nil {
		rp.fault(n, path, "%v", err)
	}
	return n.Value
}

// limit reads the value of one kind of limit and notes that the rule decides it.
func (rp *ruleParser) limit(n *yaml.Node, key string, kind Kinds, set func(string) error) {
	s, ok := rp.text(n, key)
	if !ok {
		return
	}
	rp.rule.Sets |= kind
	if s == unlimited {
		return
	}
	if err := set(s); err != nil {
		rp.fault(n, rp.path+"."+key, "%v", err)
	}
}

func (rp *ruleParser) text(n *yaml.Node, key string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		rp.fault(n, rp.path+"."+key, "is %s, want a value", show(n))
		return "", false
	}
	return n.Value, true
}

func (rp *ruleParser) setRate(s string) error {
	rate, err := limit.ParseRate(s)
	rp.rule.Leaky = &limit.LeakyBucket{Rate: rate}
	return err
}

func (rp *ruleParser) setWindow(s string) error {
	w, err := limit.ParseFixedWindow(s)
	rp.rule.Window = &w
	return err
}

func (rp *ruleParser) burst() {
	n, ok := rp.seen["burst"]
	if !ok {
		return
	}
	path := rp.path + ".burst"
	if rp.rule.Leaky == nil {
		rp.fault(n, path, "is the tolerance of a rate, and this rule sets none")
		return
	}
	s, ok := rp.text(n, "burst")
	if !ok {
		return
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		rp.fault(n, path, "%q is not a duration such as 200ms", s)
		return
	}
	rp.rule.Leaky.Burst = d
	if err := rp.rule.Leaky.Validate(); err != nil {
		rp.fault(n, path, "%v", err)
	}
}

func (rp *ruleParser) windowAt() {
	n, ok := rp.seen["window_at"]
	if !ok {
		return
	}
	path := rp.path + ".window_at"
	switch {
	case rp.rule.Window == nil:
		rp.fault(n, path, "says where a window is asked, and this rule sets none")
	case n.Kind == yaml.ScalarNode && n.Value == Admission.String():
		rp.rule.WindowAt = Admission
	case n.Kind == yaml.ScalarNode && n.Value == Release.String():
		rp.rule.WindowAt = Release
	default:
		rp.fault(n, path, "is %s, want admission or release", show(n))
	}
}

// whole checks what no single key can show, and adds the rule.
func (rp *ruleParser) whole(n *yaml.Node) {
	r := rp.rule
	first, twice := rp.rules[r.Selector]
	switch {
	case r.Level() == NoLevel:
		rp.fault(n, rp.path, "names neither a user nor a model")
	case r.Sets == 0:
		rp.fault(n, rp.path, "sets no limit, want at least one of rate, window, depth and depth_bytes")
	case twice:
		rp.fault(n, rp.path, "%s has a rule already in line %d", r.Selector, first.Line)
	default:
		rp.rules[r.Selector] = r
	}
}
