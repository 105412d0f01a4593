package signal

import (
	"errors"
	"fmt"
	"io"
	"math"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Bounds of a page of metrics.
const (
	MaxPageBytes = 8 << 20
	// MaxSamples bounds the samples that one selector may match.
	MaxSamples = 10_000
)

// ErrPage is wrapped by every error about a page of metrics that cannot be used.
var ErrPage = errors.New("unusable metrics")

// Sample is one line of a page of metrics.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Samples reads a page in Prometheus's text format, version 0.0.4, and returns the samples of the named metric that have
// all the labels. None is an error: a metric that is not there must not be taken for one at rest. So is a value that is
// not finite, and a histogram or summary, which has no single value.
func Samples(page io.Reader, name string, labels map[string]string) ([]Sample, error) {
	limited := &io.LimitedReader{R: page, N: MaxPageBytes + 1}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(limited)
	switch {
	case limited.N <= 0:
		return nil, fmt.Errorf("%w: the page has more than %d bytes", ErrPage, MaxPageBytes)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrPage, err)
	}
	family := families[name]
	var samples []Sample
	for _, m := range family.GetMetric() {
		own := labelsOf(m)
		if !has(own, labels) {
			continue
		}
		value, ok := valueOf(m)
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: series %s is a %v, want a gauge, counter or untyped one", ErrPage, name, family.GetType())
		case math.IsNaN(value) || math.IsInf(value, 0):
			return nil, fmt.Errorf("%w: series %s%v is %v, want a number", ErrPage, name, own, value)
		case len(samples) == MaxSamples:
			return nil, fmt.Errorf("%w: series %s matches more than %d samples", ErrPage, name, MaxSamples)
		}
		samples = append(samples, Sample{Labels: own, Value: value})
	}
	if len(samples) == 0 {
		return nil, fmt.Errorf("%w: no series %s%v among %d metrics", ErrPage, name, labels, len(families))
	}
	return samples, nil
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := make(map[string]string, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// has says whether labels holds all that are wanted, with their values.
func has(labels, wanted map[string]string) bool {
	for name, want := range wanted {
		if value, ok := labels[name]; !ok || value != want {
			return false
		}
	}
	return true
}

func valueOf(m *dto.Metric) (float64, bool) {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue(), true
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue(), true
	case m.GetUntyped() != nil:
		return m.GetUntyped().GetValue(), true
	}
	return 0, false
}
