package limit

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestStrings(t *testing.T) {
	for want, l := range map[string]fmt.Stringer{
		"5/s":                            LeakyBucket{Rate: Rate{5, time.Second}},
		"5/s burst 200ms":                LeakyBucket{Rate{5, time.Second}, 200 * time.Millisecond},
		"unlimited":                      TokenBucket{},
		"3/s":                            TokenBucket{Rate: Rate{3, time.Second}},
		"10485760/s burst 64000":         TokenBucket{Rate{10 << 20, time.Second}, 64_000},
		"7/s":                            ObservedRate{Rate: Rate{7, time.Second}},
		"0 cap 1m":                       ObservedRate{Cap: time.Minute},
		"5/s samples 100 size 2s cap 1m": ObservedRate{Rate{5, time.Second}, 100, 2 * time.Second, time.Minute},
		"100000/1m":                      TokenWindow{100_000, time.Minute},
		"8":                              Concurrency{8},
		"4..64":                          Adaptive{Min: 4, Max: 64},
		"4..64 start 8 latency 2s decrease 900 cooldown 500ms": Adaptive{4, 64, 8, 2 * time.Second, 900, 500 * time.Millisecond},
	} {
		if got := l.String(); got != want {
			t.Errorf("%#v is written %q, want %q", l, got, want)
		}
	}
	if got := (Concurrency{}).String(); got != "unlimited" {
		t.Errorf("no bound is written %q", got)
	}
}

func TestParseTokenWindow(t *testing.T) {
	for in, want := range map[string]TokenWindow{"100000/1m": {100_000, time.Minute}, "7/m": {7, time.Minute}} {
		if got, err := ParseTokenWindow(in); err != nil || got != want {
			t.Errorf("%q = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "5", "0/1m", "-5/1m", "5/1us", "5/800h", "1000000000001/1m"} {
		if got, err := ParseTokenWindow(in); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q = %v, %v", in, got, err)
		}
	}
}

func TestParseByteRate(t *testing.T) {
	for in, want := range map[string]Rate{
		"1000/s": {1000, time.Second},
		"10B/s":  {10, time.Second},
		"1kB/s":  {1000, time.Second},
		"1KB/1m": {1000, time.Minute},
		"1KiB/s": {1024, time.Second},
		"3MB/2s": {3_000_000, 2 * time.Second},
		"1GB/s":  {1_000_000_000, time.Second},
		"5GB/s":  {500_000_000, 100 * time.Millisecond},
		"5GiB/s": {536_870_912, 100 * time.Millisecond},
	} {
		if got, err := ParseByteRate(in); err != nil || got != want {
			t.Errorf("%q = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "0/s", "5XB/s", "B/s", "10GiB/ms", "9999999999GB/s", "17592186044421MiB/s",
		"1GiB/1h", "10GiB/s", // more than MaxEvents, and not divisible
	} {
		if got, err := ParseByteRate(in); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q = %v, %v", in, got, err)
		}
	}
}

// FuzzParse: no text makes a parser panic, or accept what it does not read again from what it is written as.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"5/s", "10MiB/s", "30/1m", "100/1m", "1/1500ms", "5GB/s"} {
		f.Add(s)
	}
	parsers := map[string]func(string) (fmt.Stringer, error){
		"rate":   func(s string) (fmt.Stringer, error) { return ParseRate(s) },
		"bytes":  func(s string) (fmt.Stringer, error) { return ParseByteRate(s) },
		"window": func(s string) (fmt.Stringer, error) { return ParseFixedWindow(s) },
		"tokens": func(s string) (fmt.Stringer, error) { return ParseTokenWindow(s) },
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
