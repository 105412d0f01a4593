package signal

import (
	"errors"
	"strings"
	"testing"
)

// vllm is what a vLLM server shows, abridged.
const vllm = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m1"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m1"} 12.0
vllm:num_requests_waiting{engine="1",model_name="m1"} 8.0
vllm:num_requests_waiting{engine="0",model_name="m2"} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m1"} 0.875
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m1"} 0.5
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0"} 17
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="1.0"} 1
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 2
vllm:e2e_request_latency_seconds_sum 3
vllm:e2e_request_latency_seconds_count 2
nothing NaN
endless +Inf
plain 4
`

func TestSamples(t *testing.T) {
	for _, tc := range []struct {
		name   string
		labels map[string]string
		want   []float64
		err    string
	}{
		{"vllm:num_requests_waiting", nil, []float64{12, 8, 0}, ""},
		{"vllm:num_requests_waiting", map[string]string{"model_name": "m1"}, []float64{12, 8}, ""},
		{"vllm:num_requests_waiting", map[string]string{"model_name": "m1", "engine": "1"}, []float64{8}, ""},
		{"vllm:kv_cache_usage_perc", map[string]string{"model_name": "m1"}, []float64{.875}, ""},
		{"vllm:gpu_cache_usage_perc", nil, []float64{.5}, ""},
		{"vllm:request_success_total", nil, []float64{17}, ""},
		{"plain", nil, []float64{4}, ""},
		{"vllm:num_requests_waiting", map[string]string{"model_name": "m3"}, nil, "no series"},
		{"vllm:num_requests_waiting", map[string]string{"pod": ""}, nil, "no series"},
		{"vllm:num_requests", nil, nil, "no series"},
		{"vllm:e2e_request_latency_seconds", nil, nil, "HISTOGRAM"},
		{"nothing", nil, nil, "NaN"},
		{"endless", nil, nil, "Inf"},
	} {
		samples, err := Samples(strings.NewReader(vllm), tc.name, tc.labels)
		if tc.err != "" {
			if !errors.Is(err, ErrPage) || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s%v: %v, want %q", tc.name, tc.labels, err, tc.err)
			}
			continue
		}
		if err != nil || len(samples) != len(tc.want) {
			t.Errorf("%s%v: %v, %v", tc.name, tc.labels, samples, err)
			continue
		}
		for i, s := range samples {
			if s.Value != tc.want[i] {
				t.Errorf("%s%v: %v, want %v", tc.name, tc.labels, samples, tc.want)
			}
		}
	}
}

func TestPageIsBounded(t *testing.T) {
	long := strings.Repeat("# a comment that goes on\n", MaxPageBytes/25+1) + "plain 4\n"
	many := strings.Repeat("plain 4\n", MaxSamples+1)
	for name, page := range map[string]string{"bytes": long, "samples": many, "no metrics": "<html>", "empty": ""} {
		if _, err := Samples(strings.NewReader(page), "plain", nil); !errors.Is(err, ErrPage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzSamples(f *testing.F) {
	f.Add([]byte(vllm), "plain")
	f.Fuzz(func(t *testing.T, page []byte, name string) {
		if samples, err := Samples(strings.NewReader(string(page)), name, nil); (len(samples) == 0) == (err == nil) {
			t.Errorf("%d samples, %v", len(samples), err)
		}
	})
}
