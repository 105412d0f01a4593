package policy

import (
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Bounds of a document, whatever the number of its files.
const (
	MaxBytes   = 16 << 20
	MaxNodes   = 3_000_000 // keys, values, lists and mappings, as nodesIn estimates them
	MaxRules   = 100_000   // entries of each section
	MaxSignals = 1000
	MaxAlarms  = 1000
	Version    = 1
)

// documentKeys are the top-level keys, in the order in which a document is written.
var documentKeys = [...]string{
	"version", "cost", "default_level", "limits", "rows", "columns", "levels", "broker", "importance", "signals", "alarms",
}

// Part is one file of a document that is kept in several.
type Part struct {
	File string // as faults and Rule.File name it
	Text []byte
}

// Parse reads a document. The error joins a *Fault for each thing that is wrong, the first 20 of them.
func Parse(data []byte) (*Document, error) { return ParseParts([]Part{{Text: data}}) }

// ParseParts reads a document that is kept in several files: each is a document by itself, and all together must be one.
// What one says another may not say again.
func ParseParts(parts []Part) (*Document, error) {
	p := newParser()
	size := 0
	for _, part := range parts {
		size += len(part.Text)
	}
	if size > MaxBytes {
		return nil, &Fault{Key: "document", Reason: fmt.Sprintf("has %d bytes, the limit is %d", size, MaxBytes)}
	}
	nodes := 0
	for _, part := range parts {
		p.file = part.File
		if nodes += nodesIn(part.Text); nodes > MaxNodes {
			p.add(0, "document", fmt.Sprintf("has about %d keys, values, lists and mappings, the limit is %d", nodes, MaxNodes))
			break
		}
		root, fault := decode(part.Text)
		if fault != nil {
			p.add(fault.Line, fault.Key, fault.Reason)
			continue
		}
		p.document(root)
	}
	p.finish()
	if len(p.faults) > 0 {
		return nil, joinFaults(p.faults)
	}
	return p.doc, nil
}

// parser collects a document and faults on its way through the trees.
type parser struct {
	doc    *Document
	file   string // that is being read
	faults []*Fault
	count  int // faults noted, also those beyond maxFaults

	first   map[string]string // where each single key, signal and alarm was set
	entries map[string]int    // of each bounded section, over all files
	scaled  []func()          // checks of signals and alarms that need all columns and levels
}

func newParser() *parser {
	return &parser{
		doc: &Document{
			enforced: newRules(), shadow: newRules(),
			importance: make(map[Selector]Importance), keys: make(map[string]Importance),
		},
		first: make(map[string]string), entries: make(map[string]int),
	}
}

func (p *parser) fault(n *yaml.Node, key, format string, args ...any) {
	p.add(n.Line, key, fmt.Sprintf(format, args...))
}

func (p *parser) add(line int, key, reason string) {
	p.count++
	if len(p.faults) < maxFaults {
		p.faults = append(p.faults, &Fault{File: p.file, Line: line, Key: key, Reason: reason})
	}
}

func (p *parser) document(n *yaml.Node) {
	version := false
	p.mapping(n, "document", "", func(name string, key, value *yaml.Node) {
		switch name {
		case "version":
			version = true
			if value.Kind != yaml.ScalarNode || value.Value != strconv.Itoa(Version) {
				p.fault(value, name, "is %s, this program reads version %d", show(value), Version)
			}
		case "cost":
			p.doc.cost = CostUnit(p.single(key, value).oneOf(name, costNames[:]))
		case "default_level":
			p.doc.level, p.doc.levelSet = p.single(key, value).level(name), true
		case "broker":
			p.broker(value)
		case "limits", "rows", "columns", "levels", "importance", "signals", "alarms":
			p.list(name, value)
		default:
			p.fault(key, name, "unknown key, a document has %s", list(documentKeys[:]))
		}
	})
	if !version && n.Kind == yaml.MappingNode {
		p.fault(n, "version", "is missing, want %d", Version)
	}
}

// single is an entry with a top-level key that only one of all files may set.
func (p *parser) single(key, value *yaml.Node) *entry {
	p.once(key, key.Value, key.Value, "")
	return &entry{parser: p, node: value, values: map[string]*yaml.Node{key.Value: value}, before: p.count}
}

// once notes that something has been set here, and reports whether it was for the first time. Else that is a fault at path.
func (p *parser) once(n *yaml.Node, id, path, what string) bool {
	if first, twice := p.first[id]; twice {
		p.fault(n, path, "%sis set already in %s", what, first)
		return false
	}
	p.first[id] = position(p.file, n.Line)
	return true
}

// list reads a top-level list.
func (p *parser) list(name string, n *yaml.Node) {
	most, read := p.reader(name)
	switch {
	case isNull(n): // such as "limits:" with all its entries commented out
		return
	case n.Kind != yaml.SequenceNode:
		p.fault(n, name, "is %s, want a list", show(n))
		return
	}
	if p.entries[name] += len(n.Content); p.entries[name] > most {
		p.fault(n, name, "has %d entries, the limit is %d", p.entries[name], most)
		return
	}
	for i, item := range n.Content {
		read(item, name+"["+strconv.Itoa(i)+"]")
	}
}

// reader is what reads an entry of a list, and how many there may be.
func (p *parser) reader(name string) (most int, read func(n *yaml.Node, path string)) {
	switch name {
	case "importance":
		return MaxRules, p.importance
	case "signals":
		return MaxSignals, p.signal
	case "alarms":
		return MaxAlarms, p.alarm
	case "rows":
		return MaxRules, p.ruleOf(Rows)
	case "columns":
		return MaxRules, p.ruleOf(Columns)
	case "levels":
		return MaxRules, p.ruleOf(Levels)
	case "broker":
		return MaxRules, p.ruleOf(Broker)
	}
	return MaxRules, p.ruleOf(Cells)
}

// broker reads the limits of everything: one entry, or a list when there is one in shadow, too.
func (p *parser) broker(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode || isNull(n) {
		p.list("broker", n)
		return
	}
	p.ruleOf(Broker)(n, "broker")
}

// finish checks what only the whole document can show.
func (p *parser) finish() {
	for _, check := range p.scaled {
		check()
	}
	p.doc.sortSignals()
}

// mapping calls f for each key of a mapping, and refuses what is none, keys that are not text and keys that come twice.
// path names the mapping, prefix comes before its keys' names.
func (p *parser) mapping(n *yaml.Node, path, prefix string, f func(name string, key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.fault(n, path, "is %s, want keys and values", show(n))
		return
	}
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		first, twice := lines[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			p.fault(key, path, "has %s for a key", show(key))
		case twice:
			p.fault(key, prefix+key.Value, "is set already in line %d", first)
		default:
			lines[key.Value] = key.Line
			f(key.Value, key, value)
		}
	}
}
