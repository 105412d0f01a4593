package limit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// parsers read and write each limit as text.
var parsers = map[string]func(string) (fmt.Stringer, error){
	"leaky":       func(s string) (fmt.Stringer, error) { return ParseLeakyBucket(s) },
	"token":       func(s string) (fmt.Stringer, error) { return ParseTokenBucket(s) },
	"observed":    func(s string) (fmt.Stringer, error) { return ParseObservedRate(s) },
	"window":      func(s string) (fmt.Stringer, error) { return ParseFixedWindow(s) },
	"tokens":      func(s string) (fmt.Stringer, error) { return ParseTokenWindow(s) },
	"concurrency": func(s string) (fmt.Stringer, error) { return ParseConcurrency(s) },
	"adaptive":    func(s string) (fmt.Stringer, error) { return ParseAdaptive(s) },
}

func TestParseLimits(t *testing.T) {
	for _, tc := range []struct {
		kind, in string
		want     fmt.Stringer
		out      string // if it is written otherwise
	}{
		{"leaky", "5/s", LeakyBucket{Rate: Rate{5, time.Second}}, ""},
		{"leaky", "5/s burst 200ms", LeakyBucket{Rate{5, time.Second}, 200 * time.Millisecond}, ""},
		{"token", "5/s", TokenBucket{Rate: Rate{5, time.Second}}, ""},
		{"token", "5/s burst 500", TokenBucket{Rate{5, time.Second}, 500}, ""},
		{"token", "0", TokenBucket{}, "unlimited"},
		{"token", "unlimited", TokenBucket{}, ""},
		{"token", "10MiB/s burst 64kB", TokenBucket{Rate{10 << 20, time.Second}, 64_000}, "10485760/s burst 64000"},
		{"observed", "5/s", ObservedRate{Rate: Rate{5, time.Second}}, ""},
		{"observed", "0 cap 1m", ObservedRate{Cap: time.Minute}, ""},
		{
			"observed", "5/s  size 2s cap 1m samples 100",
			ObservedRate{Rate{5, time.Second}, 100, 2 * time.Second, time.Minute}, "5/s samples 100 size 2s cap 1m",
		},
		{"tokens", "100000/1m", TokenWindow{100_000, time.Minute}, ""},
		{"tokens", "7/m", TokenWindow{7, time.Minute}, "7/1m"},
		{"concurrency", "8", Concurrency{8}, ""},
		{"concurrency", "0", Concurrency{}, "unlimited"},
		{"adaptive", "4..64", Adaptive{Min: 4, Max: 64}, ""},
		{
			"adaptive", "4..64 start 8 latency 2s decrease 900 cooldown 500ms",
			Adaptive{4, 64, 8, 2 * time.Second, 900, 500 * time.Millisecond}, "",
		},
	} {
		got, err := parsers[tc.kind](tc.in)
		if err != nil || got != tc.want {
			t.Errorf("%s %q = %#v, %v; want %#v", tc.kind, tc.in, got, err, tc.want)
		}
		if tc.out == "" {
			tc.out = tc.in
		}
		if got.String() != tc.out {
			t.Errorf("%s %q is written %q, want %q", tc.kind, tc.in, got, tc.out)
		}
	}
}

func TestParseLimitsRefuses(t *testing.T) {
	for kind, inputs := range map[string]string{
		"leaky":       "|0|unlimited|5/s burst|5/s burst 0s|5/s burst -1s|5/s burst 5|5/s 5s|5/s burst 1s burst 1s|5/s cap 1s|5kB/s|5/s burst 800h",
		"token":       "|-1|5/s burst 0|5/s burst -1|5/s burst x|0/s|5/s samples 3|5XB/s|10GiB/ms|9999999999GB/s|17592186044421MiB/s|5/s burst 2000GB|B/s",
		"observed":    "|unlimited|5/s samples 0|5/s samples 3601|5/s samples -1|5/s size 1us|5/s cap -1s|5/s samples 3600 size 1h|1000000000/ms|5/s samples 99999999999999",
		"tokens":      "|5|0/1m|-5/1m|5/1us|5/800h|1000000000001/1m",
		"concurrency": "|-1|x|1.5|1000000000001|8 at once",
		"adaptive":    "|8|8..|..8|8..4|0..0|4..64 start 2|4..64 start 65|4..64 decrease 1000|4..64 decrease 0|4..64 latency 0s|4..64 cooldown 800h|-1..4|4..2000000000000",
	} {
		for in := range strings.SplitSeq(inputs, "|") {
			got, err := parsers[kind](in)
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s %q = %v, %v", kind, in, got, err)
			}
		}
	}
}

// TestParseNamesTheFault: what is wrong is in the message, and what would be right.
func TestParseNamesTheFault(t *testing.T) {
	for in, want := range map[string]string{
		"5/s burst 0":             "burst 0",
		"5/s burst 1 b 1":         `"b" is not known here, want burst`,
		"5/s burst":               "pairs",
		"5/s burst 1.5":           `burst "1.5" is not a whole number`,
		"x/s":                     `"x"`,
		"1000000001/s":            "1000000000",
		"5/s burst 9999999999999": "1000000000000",
	} {
		if _, err := ParseTokenBucket(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want it to name %s", in, err, want)
		}
	}
}

func TestParseByteRate(t *testing.T) {
	for in, want := range map[string]Rate{
		"1000/s":  {1000, time.Second},
		"10B/s":   {10, time.Second},
		"1kB/s":   {1000, time.Second},
		"1KB/1m":  {1000, time.Minute},
		"1KiB/s":  {1024, time.Second},
		"3MB/2s":  {3_000_000, 2 * time.Second},
		"1GiB/1h": {0, 0}, // more than MaxEvents, and not divisible
		"1GB/s":   {1_000_000_000, time.Second},
		"5GB/s":   {500_000_000, 100 * time.Millisecond},
		"10GiB/s": {0, 0},
		"5GiB/s":  {536_870_912, 100 * time.Millisecond},
	} {
		got, err := ParseByteRate(in)
		if want == (Rate{}) {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q = %v, %v", in, got, err)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%q = %v, %v; want %v", in, got, err, want)
		}
	}
}

// TestLimitsAreReadBack: every valid limit is read from what it writes.
func TestLimitsAreReadBack(t *testing.T) {
	draws := map[string]func(t *rapid.T) fmt.Stringer{
		"leaky": func(t *rapid.T) fmt.Stringer {
			l := LeakyBucket{Rate: drawRate(t)}
			l.Burst = drawBurst(t, l.Rate)
			return l
		},
		"token":    func(t *rapid.T) fmt.Stringer { return drawTokenBucket(t) },
		"observed": func(t *rapid.T) fmt.Stringer { return drawObserved(t) },
		"tokens": func(t *rapid.T) fmt.Stringer {
			return TokenWindow{rapid.Int64Range(1, MaxLimit).Draw(t, "limit"), drawWindow(t)}
		},
		"concurrency": func(t *rapid.T) fmt.Stringer { return Concurrency{rapid.Int64Range(0, MaxLimit).Draw(t, "max")} },
		"adaptive": func(t *rapid.T) fmt.Stringer {
			l := Adaptive{Min: rapid.Int64Range(0, 9).Draw(t, "min"), Max: rapid.Int64Range(9, MaxLimit).Draw(t, "max")}
			l.Start = rapid.SampledFrom([]int64{0, 9, l.Max}).Draw(t, "start")
			l.Latency, l.Cooldown = drawWindow(t), drawWindow(t)
			l.Decrease = rapid.IntRange(0, 999).Draw(t, "decrease")
			return l
		},
	}
	for kind, draw := range draws {
		t.Run(kind, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				want := draw(t)
				if got, err := parsers[kind](want.String()); err != nil || got != want {
					t.Fatalf("%#v is written %q and read %#v, %v", want, want, got, err)
				}
			})
		})
	}
}

// FuzzParse: no text makes a parser panic or accept what Validate refuses.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"5/s burst 200ms", "10MiB/s burst 1", "0", "4..64 start 8 latency 2s", "100/1m", "5/s samples 3 cap 1s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for kind, parse := range parsers {
			got, err := parse(s)
			if err != nil {
				if !errors.Is(err, ErrInvalid) {
					t.Errorf("%s %q: %v", kind, s, err)
				}
				continue
			}
			if again, err := parse(got.String()); err != nil || again != got {
				t.Errorf("%s %q is written %q and read %#v, %v", kind, s, got, again, err)
			}
		}
	})
}
