package limit

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseRate(t *testing.T) {
	for in, want := range map[string]Rate{
		"5/s":      {5, time.Second},
		"30/1m":    {30, time.Minute},
		"30/m":     {30, time.Minute},
		"1/2s":     {1, 2 * time.Second},
		"1000/ms":  {1000, time.Millisecond},
		"2/h":      {2, time.Hour},
		"7/1h30m":  {7, 90 * time.Minute},
		"1/1500ms": {1, 1500 * time.Millisecond},
	} {
		if got, err := ParseRate(in); err != nil || got != want {
			t.Errorf("ParseRate(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, in := range []string{
		"", "5", "/", "5/", "/s", "0/s", "-1/s", "0.5/s", "5/S", "5/ s", " 5/s", "5/x", "5/1", "5/0s", "5/-1s", "5/1us",
		"5/745h", "1e3/s", "9223372036854775808/s", "5/s/s", "NaN/s", "inf/s", "5/99999999999h",
	} {
		if got, err := ParseRate(in); !errors.Is(err, ErrInvalid) {
			t.Errorf("ParseRate(%q) = %v, %v", in, got, err)
		}
		if got, err := ParseFixedWindow(in); !errors.Is(err, ErrInvalid) {
			t.Errorf("ParseFixedWindow(%q) = %v, %v", in, got, err)
		}
	}
	if _, err := ParseRate("1000000001/s"); !errors.Is(err, ErrInvalid) {
		t.Errorf("a rate over the limit: %v", err)
	}
	if _, err := ParseFixedWindow("1000000000001/s"); !errors.Is(err, ErrInvalid) {
		t.Errorf("a window over the limit: %v", err)
	}
	if err := (LeakyBucket{Rate: Rate{1, time.Second}, Burst: -1}).Validate(); !errors.Is(err, ErrInvalid) {
		t.Errorf("a negative burst: %v", err)
	}
}

func TestStringIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rate{rapid.Int64Range(1, MaxEvents).Draw(t, "events"), time.Duration(rapid.OneOf(
			rapid.Int64Range(int64(MinWindow), int64(MaxWindow)),
			rapid.Map(rapid.Int64Range(1, 700), func(n int64) int64 { return n * int64(time.Hour) }),
			rapid.Map(rapid.Int64Range(1, 700), func(n int64) int64 { return n * int64(time.Minute) }),
		).Draw(t, "per"))}
		if got, err := ParseRate(r.String()); err != nil || got != r {
			t.Fatalf("%+v is written %q and read %+v, %v", r, r, got, err)
		}
		w := FixedWindow{Limit: r.Events, Window: r.Per}
		if got, err := ParseFixedWindow(w.String()); err != nil || got != w {
			t.Fatalf("%+v is written %q and read %+v, %v", w, w, got, err)
		}
	})
}
