package live

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// maxTargets bounds the columns that one page may speak of.
const maxTargets = 1000

// timeoutMax bounds one poll, whatever the interval.
const timeoutMax = 10 * time.Second

// reader fetches the page of one signal.
type reader struct {
	client *http.Client
	spec   policy.Signal
	metric string
	labels map[string]string
}

func newReader(client *http.Client, spec policy.Signal) (reader, error) {
	metric, labels, err := policy.ParseSeries(spec.Series)
	if err != nil {
		return reader{}, fmt.Errorf("series %w", err)
	}
	return reader{client: client, spec: spec, metric: metric, labels: labels}, nil
}

// read polls once. It takes at most three quarters of an interval: one that hangs is then known to be stale in time.
func (r reader) read(ctx context.Context) (map[suspend.Target]float64, error) {
	timeout := min(r.spec.Interval*3/4, timeoutMax)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	samples, err := r.fetch(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	return readings(samples, r.spec)
}

func (r reader) fetch(ctx context.Context) ([]signal.Sample, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.spec.URL, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	request.Header.Set("User-Agent", "penstock")
	answer, err := r.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // only read from
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the page answers %s", answer.Status)
	}
	return signal.Samples(answer.Body, r.metric, r.labels)
}

// readings makes one value for each target of the samples.
func readings(samples []signal.Sample, spec policy.Signal) (map[suspend.Target]float64, error) {
	groups := make(map[suspend.Target][]float64)
	for _, s := range samples {
		target := targetOf(spec.Of)
		if spec.Of.By != "" {
			target = suspend.Target{Scope: suspend.Column, Name: s.Labels[spec.Of.By]}
			if target.Validate() != nil {
				continue // without the label, or a name that no model can have
			}
		}
		groups[target] = append(groups[target], s.Value)
	}
	switch {
	case len(groups) == 0:
		return nil, fmt.Errorf("no sample of %s has a label %s that names a model", spec.Series, spec.Of.By)
	case len(groups) > maxTargets:
		return nil, fmt.Errorf("label %s has %d values, the limit is %d", spec.Of.By, len(groups), maxTargets)
	}
	values := make(map[suspend.Target]float64, len(groups))
	for target, group := range groups {
		v, err := aggregate(spec.Aggregate, group)
		if err != nil {
			return nil, err
		}
		if math.IsInf(v, 0) { // no single sample is
			return nil, fmt.Errorf("the %v of %d samples of %s is over the largest number", spec.Aggregate, len(group), spec.Series)
		}
		values[target] = v
	}
	return values, nil
}

// targetOf is what a signal without a label scales.
func targetOf(of policy.Scaled) suspend.Target {
	if of.Section == policy.Levels {
		return suspend.Target{Scope: suspend.Level, Name: of.Name}
	}
	return suspend.Target{Scope: suspend.Column, Name: of.Name}
}

// aggregate joins the values of one target. REQUIRES: there is one.
func aggregate(how policy.Aggregate, values []float64) (float64, error) {
	sum, highest := 0.0, values[0]
	for _, v := range values {
		sum += v
		highest = max(highest, v)
	}
	switch how {
	case policy.Sum:
		return sum, nil
	case policy.Max:
		return highest, nil
	case policy.Avg:
		return sum / float64(len(values)), nil
	default:
		return 0, errors.New("unknown aggregate")
	}
}
