package gateway

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseBody(t *testing.T) {
	for _, tt := range []struct {
		body   string
		model  string
		stream bool
		err    error
		param  string
	}{
		{body: `{"model":"m"}`, model: "m"},
		{body: ` {"messages":[{"model":"inner"}],"model":"m","stream":true} ` + "\n", model: "m", stream: true},
		{body: `{"model":"m","stream":null}`, model: "m"},
		{body: `{"model":"m","Stream":true,"MODEL":"other"}`, model: "m"}, // case counts
		{body: `{"model":"a","model":"b"}`, err: errValue, param: "model"},
		{body: `{"model":"m","stream":true,"stream":false}`, err: errValue, param: "stream"},
		{body: `{"model":7}`, err: errValue, param: "model"},
		{body: `{"model":"m","stream":"yes"}`, err: errValue, param: "stream"},
		{body: `{"model":null}`, err: errMissing, param: "model"},
		{body: `{}`, err: errMissing, param: "model"},
		{body: ``, err: errJSON},
		{body: `[]`, err: errJSON},
		{body: `"model"`, err: errJSON},
		{body: `{"model":"m"`, err: errJSON},
		{body: `{"model":"m"} {}`, err: errJSON},
		{body: `{"model":"m"}x`, err: errJSON},
		{body: `{"model":"m","temperature":-}`, err: errJSON, param: "temperature"},
		{body: `{"model":"m","messages":[{]}`, err: errJSON, param: "messages"},
		{body: `{"model":tru`, err: errJSON, param: "model"},
		{body: "{\"model\":\"\xff\"}", err: errJSON},
	} {
		got, err := parseBody([]byte(tt.body))
		if !errors.Is(err, tt.err) || (tt.err == nil && err != nil) {
			t.Errorf("%s: error %v, want %v", tt.body, err, tt.err)
			continue
		}
		if err == nil {
			if got.model != tt.model || got.stream != tt.stream {
				t.Errorf("%s: %+v", tt.body, got)
			}
			continue
		}
		var f *fault
		if !errors.As(err, &f) || f.param != tt.param {
			t.Errorf("%s: names %+v, want field %q", tt.body, f, tt.param)
		}
	}
}

// Whatever is accepted is JSON with exactly that model in it.
func FuzzParseBody(f *testing.F) {
	for _, seed := range []string{chatBody, streamBody, `{"model":"a","x":[1,{"y":null}]}`, `{`, `{"model":"\ud800"}`, `{"":0,"model":"m"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := parseBody(body)
		if err != nil {
			if statusOf(err).http != 400 {
				t.Fatalf("error %v is no 400", err)
			}
			return
		}
		var whole map[string]any
		if err := json.Unmarshal(body, &whole); err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		if whole["model"] != got.model {
			t.Fatalf("model %q, but the object has %v", got.model, whole["model"])
		}
	})
}

func TestParseTimeout(t *testing.T) {
	const fallback, most = time.Minute, time.Hour
	for _, tt := range []struct {
		value string
		want  time.Duration // 0: refused
	}{
		{"", fallback},
		{"2", 2 * time.Second},
		{" 0.5 ", 500 * time.Millisecond},
		{"1500ms", 1500 * time.Millisecond},
		{"1h", time.Hour},
		{"3600", time.Hour},
		{"0.001", time.Millisecond},
		{"0", 0},
		{"-1", 0},
		{"-1s", 0},
		{"0.0009", 0},
		{"61m", 0},
		{"1e300", 0},
		{"NaN", 0},
		{"Inf", 0},
		{"soon", 0},
		{"1e18", 0},
	} {
		got, err := parseTimeout(tt.value, fallback, most)
		if tt.want == 0 {
			if !errors.Is(err, errTimeoutValue) || !strings.Contains(err.Error(), headerTimeout) {
				t.Errorf("%q: %v, %v; want a refusal that names the header", tt.value, got, err)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("%q: %v, %v; want %v", tt.value, got, err, tt.want)
		}
	}
	if _, err := parseTimeout("2h", fallback, most); err == nil || !strings.Contains(err.Error(), "1h0m0s") {
		t.Errorf("%v does not name the limit", err)
	}
}
