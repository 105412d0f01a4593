package sim

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestReadTrace(t *testing.T) {
	got, err := ReadTrace(strings.NewReader(`
{"time": 1.5, "user": "bob", "model": "m", "service_time": "300ms"}
{"time": 0.25, "user": "alice", "model": "m", "cost": 3, "service_time": 0.1, "level": 0}

{"time": 1.5, "user": "carol", "model": "m", "input_tokens": 10, "output_tokens": 20, "bytes": 7}
`))
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, q := range got {
		order = append(order, q.User)
	}
	if want := []string{"alice", "bob", "carol"}; !reflect.DeepEqual(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if at := got[0].Time.Sub(time.Unix(0, 0)); at != 250*time.Millisecond {
		t.Errorf("first arrives at %v", at)
	}
	if got[0].Level == nil || *got[0].Level != 0 || got[1].Level != nil {
		t.Error("level 0 and no level are not told apart")
	}
	if d := time.Duration(got[0].ServiceTime); d != 100*time.Millisecond {
		t.Errorf("service time %v", d)
	}
}

func TestReadTraceNamesLineAndField(t *testing.T) {
	for text, want := range map[string]string{
		`{"user": "a", "model": "m"}`:                                                                "line 1: time: is missing",
		`{"time": 0, "user": "", "model": "m"}`:                                                      "line 1: user: ",
		"\n" + `{"time": 0, "user": "a", "model": "*"}`:                                              "line 2: model: ",
		`{"time": "9999-11-30T11:03:43Z", "user": "a", "model": "m"}`:                                "time: 9999-11-30 11:03:43 +0000 UTC is outside the years",
		`{"time": "1969-11-30T11:03:43Z", "user": "a", "model": "m"}`:                                "time: 1969-11-30 11:03:43 +0000 UTC is outside the years",
		`{"time": -1, "user": "a", "model": "m"}`:                                                    "time: -1",
		`{"time": "noon", "user": "a", "model": "m"}`:                                                `time: "noon"`,
		`{"time": 0, "user": "a", "model": "m", "cost": -1}`:                                         "cost: -1 is outside",
		`{"time": 0, "user": "a", "model": "m", "level": 4}`:                                         "level: 4 is outside",
		`{"time": 0, "user": "a", "model": "m", "service_time": "-1s"}`:                              "service_time: -1s is outside",
		`{"time": 0, "user": "a", "model": "m", "service_time": "soon"}`:                             `service_time: "soon"`,
		`{"time": 0, "user": "a", "model": "m", "tokens": 1}`:                                        "tokens",
		`{"time": 0, "user": "a", "model": "m"} {}`:                                                  "more than one value",
		`{"time": 0, "user": "a", "model": "m"}` + "\n" + `{"time": 9e6, "user": "a", "model": "m"}`: "it lasts",
	} {
		_, err := ReadTrace(strings.NewReader(text))
		if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nerror %v, want %q", text, err, want)
		}
	}
}

func TestTraceReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Load{
			Users: rapid.IntRange(1, 3).Draw(t, "users"), Models: rapid.IntRange(1, 3).Draw(t, "models"),
			Rate: rapid.Float64Range(0.5, 5).Draw(t, "rate"), Burst: rapid.IntRange(1, 4).Draw(t, "burst"),
			For: 10 * time.Second, Tokens: rapid.Int64Range(0, 100).Draw(t, "tokens"), Seed: rapid.Uint64().Draw(t, "seed"),
		}
		trace, err := Generate(l)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := WriteTrace(&b, trace); err != nil {
			t.Fatal(err)
		}
		back, err := ReadTrace(&b)
		if err != nil {
			t.Fatal(err)
		}
		if len(back) != len(trace) {
			t.Fatalf("%d requests, read back %d", len(trace), len(back))
		}
		for i := range trace {
			if !trace[i].Time.Equal(back[i].Time.Time) {
				t.Fatalf("request %d: %v, read back %v", i, trace[i].Time, back[i].Time)
			}
			trace[i].Time = back[i].Time
			if !reflect.DeepEqual(trace[i], back[i]) {
				t.Fatalf("request %d: %+v, read back %+v", i, trace[i], back[i])
			}
		}
	})
}

func TestGenerateRefusesWhatIsOutOfBounds(t *testing.T) {
	for want, l := range map[string]Load{
		"users":    {Users: -1},
		"rate":     {Rate: -1},
		"burst":    {Burst: -1},
		"for":      {For: -time.Second},
		"service":  {Service: -1},
		"tokens":   {Tokens: -1},
		"requests": {Users: 1000, Rate: 1000, For: time.Hour},
	} {
		if _, err := Generate(l); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", l, err, want)
		}
	}
}
