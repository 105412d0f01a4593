package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a document.
const (
	MaxBytes  = 16 << 20
	MaxRules  = 100_000
	Version   = 1
	maxFaults = 20 // named in one error; a wrong file would otherwise fill the log
)

// ErrInvalid is wrapped by every error of Parse.
var ErrInvalid = errors.New("invalid policy")

// Fault is one thing that is wrong with a document.
type Fault struct {
	Line   int    // 1-based; 0 if it is no single line
	Key    string // such as "limits[2].rate"
	Reason string // what is wrong, and what would be right
}

func (f *Fault) Error() string {
	if f.Line == 0 {
		return fmt.Sprintf("policy: %s: %s", f.Key, f.Reason)
	}
	return fmt.Sprintf("policy line %d: %s: %s", f.Line, f.Key, f.Reason)
}

// Unwrap makes errors.Is(err, ErrInvalid) hold.
func (f *Fault) Unwrap() error { return ErrInvalid }

// Parse reads a document. The error joins a *Fault for each thing that is wrong, the first 20 in the order of the text.
func Parse(data []byte) (*Document, error) {
	if len(data) > MaxBytes {
		return nil, &Fault{Key: "document", Reason: fmt.Sprintf("has %d bytes, the limit is %d", len(data), MaxBytes)}
	}
	root, err := decode(data)
	if err != nil {
		return nil, err
	}
	p := &parser{rules: make(map[Selector]*Rule)}
	p.document(root)
	if len(p.faults) > 0 {
		return nil, errors.Join(p.faults...)
	}
	return &Document{rules: p.rules}, nil
}

// decode reads the one YAML document in data as a tree, which keeps the lines.
func decode(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		// A file that is being written is empty for a moment; were that a valid document, it would lift every limit.
		return nil, &Fault{Key: "document", Reason: `is empty, want at least "version: 1"`}
	case err != nil:
		return nil, &Fault{Key: "document", Reason: "is not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, &Fault{Line: more.Line, Key: "document", Reason: "is followed by another, want one"}
	}
	return doc.Content[0], nil
}

// parser collects rules and faults on its way through the tree.
type parser struct {
	rules  map[Selector]*Rule
	faults []error
}

func (p *parser) fault(n *yaml.Node, key, format string, args ...any) {
	if len(p.faults) < maxFaults {
		p.faults = append(p.faults, &Fault{Line: n.Line, Key: key, Reason: fmt.Sprintf(format, args...)})
	}
}

func (p *parser) document(n *yaml.Node) {
	version := false
	p.mapping(n, "document", "", func(name string, key, value *yaml.Node) {
		switch name {
		case "version":
			version = true
			if value.Kind != yaml.ScalarNode || value.Value != fmt.Sprint(Version) {
				p.fault(value, name, "is %s, this program reads version %d", show(value), Version)
			}
		case "limits":
			p.limits(value)
		default:
			p.fault(key, name, "unknown key, a document has version and limits")
		}
	})
	if !version && n.Kind == yaml.MappingNode {
		p.fault(n, "version", "is missing, want %d", Version)
	}
}

func (p *parser) limits(n *yaml.Node) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null": // "limits:" with all its entries commented out
		return
	case n.Kind != yaml.SequenceNode:
		p.fault(n, "limits", "is %s, want a list of rules", show(n))
		return
	case len(n.Content) > MaxRules:
		p.fault(n, "limits", "has %d rules, the limit is %d", len(n.Content), MaxRules)
		return
	}
	for i, item := range n.Content {
		p.rule(item, fmt.Sprintf("limits[%d]", i))
	}
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

// show is what a node looks like in an error.
func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias (*" + n.Value + "), which policies do not have"
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "empty"
		}
		return fmt.Sprintf("%.64q", n.Value)
	case yaml.DocumentNode: // never inside of a document
	}
	return "nothing"
}
