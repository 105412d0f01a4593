package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// nodesIn estimates the number of nodes in the tree of a text, never too low. A node takes about 200 bytes, and a text made
// for that purpose needs as little as 1.5 bytes for it: 16 MiB of "[]," would become more than a gigabyte before any rule is
// checked. So nodes are counted by their separators: each opens at most two nodes, a key and its value; a dash opens an item.
// Most separators open only one, so the estimate for a document of rules is about twice the real number.
func nodesIn(text []byte) int {
	n := 1
	for _, c := range text {
		switch c {
		case ':', '?', ',', '[', '{':
			n += 2
		case '-':
			n++
		}
	}
	return n
}

// decode reads the one document in data as a tree, which keeps the lines.
func decode(data []byte) (*yaml.Node, *Fault) {
	if start := bytes.TrimLeft(data, " \t\r\n"); len(start) > 0 && start[0] == '{' && json.Valid(data) {
		return decodeJSON(data)
	}
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

// decodeJSON reads JSON into the tree that YAML would give. YAML claims to contain JSON, but readers of it refuse tabs
// and the pairs of \u escapes in which JSON writers put most emoji. REQUIRES: data is valid JSON.
func decodeJSON(data []byte) (*yaml.Node, *Fault) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	j := &jsonReader{dec: dec, data: data, line: 1}
	n, err := j.value()
	if err != nil {
		return nil, &Fault{Line: j.line, Key: "document", Reason: "is not JSON: " + err.Error()}
	}
	return n, nil
}

// jsonReader builds a tree from the tokens of a JSON text.
type jsonReader struct {
	dec  *json.Decoder
	data []byte
	at   int64 // offset up to which lines were counted
	line int
}

func (j *jsonReader) value() (*yaml.Node, error) {
	token, err := j.dec.Token()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Line: j.here()}
	switch t := token.(type) {
	case json.Delim:
		n.Kind = yaml.SequenceNode
		if t == '{' {
			n.Kind = yaml.MappingNode
		}
		return n, j.content(n)
	case string:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!str", t
	case json.Number:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!float", t.String()
	case bool:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!bool", fmt.Sprint(t)
	default:
		n.Kind, n.Tag = yaml.ScalarNode, "!!null"
	}
	return n, nil
}

// content reads what is in a list or an object, up to its end. The keys of an object are values like others.
func (j *jsonReader) content(n *yaml.Node) error {
	for j.dec.More() {
		item, err := j.value()
		if err != nil {
			return err
		}
		n.Content = append(n.Content, item)
	}
	_, err := j.dec.Token()
	return err
}

// here is the line that the token read last ends in; a string in JSON has no line break, so it is all of it.
func (j *jsonReader) here() int {
	end := j.dec.InputOffset()
	j.line += bytes.Count(j.data[j.at:end], []byte("\n"))
	j.at = end
	return j.line
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
		if isNull(n) {
			return "empty"
		}
		return fmt.Sprintf("%.64q", n.Value)
	case yaml.DocumentNode: // never inside of a document
	}
	return "nothing"
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
