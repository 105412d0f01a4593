package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	maxSeries     = 1024 // bytes
	maxLabelValue = 256  // bytes
)

// ParseSeries reads which series of a Prometheus text page are meant: a metric name, and in braces the labels that they
// must have, as in `vllm:num_requests_waiting{model_name="llama", engine="0"}`. Labels that are not named may have any
// value; there are no other operators.
func ParseSeries(s string) (metric string, labels map[string]string, err error) {
	if len(s) > maxSeries {
		return "", nil, fmt.Errorf("has %d bytes, at most %d", len(s), maxSeries)
	}
	metric, rest, braces := strings.Cut(strings.TrimSpace(s), "{")
	metric = strings.TrimSpace(metric)
	if !isMetric(metric) {
		return "", nil, fmt.Errorf("%.64q is not the name of a metric", metric)
	}
	if !braces {
		return metric, nil, nil
	}
	labels, err = parseLabels(rest)
	return metric, labels, err
}

// parseLabels reads what follows the opening brace.
func parseLabels(rest string) (map[string]string, error) {
	labels := make(map[string]string)
	for {
		rest = strings.TrimSpace(rest)
		if rest == "}" {
			return labels, nil
		}
		name, tail, ok := strings.Cut(rest, "=")
		name = strings.TrimSpace(name)
		if _, twice := labels[name]; !ok || !isLabel(name) || twice {
			return nil, fmt.Errorf(`%.64q: want labels such as {engine="0"}, each once`, rest)
		}
		tail = strings.TrimSpace(tail)
		quoted, err := strconv.QuotedPrefix(tail)
		if err != nil || quoted[0] != '"' {
			return nil, fmt.Errorf(`the value of label %s is not in double quotes`, name)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil || len(value) > maxLabelValue {
			return nil, fmt.Errorf("the value of label %s is no text of at most %d bytes", name, maxLabelValue)
		}
		labels[name] = value
		rest = strings.TrimSpace(tail[len(quoted):])
		if after, more := strings.CutPrefix(rest, ","); more {
			rest = after
		} else if rest != "}" {
			return nil, fmt.Errorf("%.64q follows label %s, want a comma or a closing brace", rest, name)
		}
	}
}

// formatSeries is the inverse of ParseSeries, labels by name.
func formatSeries(metric string, labels map[string]string) string {
	if len(labels) == 0 {
		return metric
	}
	pairs := make([]string, 0, len(labels))
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, name+"="+strconv.Quote(labels[name]))
	}
	return metric + "{" + strings.Join(pairs, ",") + "}"
}

// isMetric accepts [a-zA-Z_:][a-zA-Z0-9_:]*.
func isMetric(s string) bool { return isLabel(strings.ReplaceAll(s, ":", "_")) }

// isLabel accepts [a-zA-Z_][a-zA-Z0-9_]*, up to 128 bytes.
func isLabel(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isWord(c) && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}
