package signal

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/suspend"
)

func TestSignalFields(t *testing.T) {
	good := poll("p", 500, 500, noon, time.Minute)
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Signal){
		"scope: ":    func(s *Signal) { s.Target.Scope = suspend.Row },
		"name: ":     func(s *Signal) { s.Target.Name = "" },
		"source: is": func(s *Signal) { s.Source = "" },
		"source: ha": func(s *Signal) { s.Source = strings.Repeat("x", MaxSourceBytes+1) },
		"not UTF-8":  func(s *Signal) { s.Source = "\xff" },
		"permille: ": func(s *Signal) { s.Permille = 1001 },
		"is -1":      func(s *Signal) { s.Permille = -1 },
		"default: ":  func(s *Signal) { s.Default = -1 },
		"kind: ":     func(s *Signal) { s.Kind = kinds },
		"at: ":       func(s *Signal) { s.At = time.Time{} },
		"until: is m": func(s *Signal) {
			s.Until = time.Time{}
		},
		"the limit is 744h": func(s *Signal) { s.Until = s.At.Add(MaxFor + 1) },
	} {
		s := good
		change(&s)
		err := s.Validate()
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
		if _, err := json.Marshal(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("marshalled in spite of %q", want)
		}
	}
}

func TestSignalJSON(t *testing.T) {
	text := `{"scope":"column","name":"m1","source":"p","kind":"poll","permille":500,"default":250,` +
		`"at":"2026-03-01T12:00:00Z","until":"2026-03-01T12:01:00Z","reason":"why"}`
	s := poll("p", 500, 250, noon, time.Minute)
	s.Reason = "why"
	b, err := json.Marshal(s)
	if err != nil || string(b) != text {
		t.Fatalf("%s, %v", b, err)
	}
	var got Signal
	if err := json.Unmarshal([]byte(text), &got); err != nil || got != s {
		t.Errorf("%+v, %v", got, err)
	}
	for name, text := range map[string]string{
		"scope":    strings.Replace(text, "column", "row", 1),
		"no scope": strings.Replace(text, "column", "nowhere", 1),
		"kind":     strings.Replace(text, `"poll"`, `"guess"`, 1),
		"permille": strings.Replace(text, "500", "5000", 1),
		"fraction": strings.Replace(text, "500", "0.5", 1),
		"list":     `[]`,
		"too long": strings.Replace(text, "why", strings.Repeat("y", MaxBytes), 1),
	} {
		before := Signal{Source: "untouched"}
		if err := before.UnmarshalJSON([]byte(text)); !errors.Is(err, ErrInvalid) || before.Source != "untouched" {
			t.Errorf("%s: %+v, %v", name, before, err)
		}
	}
}

// TestSignalRoundTrip: what may be written can be read, whatever people write into it.
func TestSignalRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := poll(rapid.StringN(1, 60, MaxSourceBytes).Draw(t, "source"), rapid.Int64Range(0, 1000).Draw(t, "permille"), 1, noon, time.Hour)
		s.Reason = string(rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "reason"))
		b, err := json.Marshal(s)
		if err != nil {
			t.Skip(err)
		}
		var got Signal
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		s.Reason = cut(s.Reason)
		if got != s || len(s.Reason) > MaxReasonBytes {
			t.Fatalf("%+v, want %+v", got, s)
		}
	})
}

func FuzzSignal(f *testing.F) {
	f.Add([]byte(`{"scope":"level","name":"3","source":"x","kind":"alarm","permille":0,"at":"2026-03-01T12:00:00Z","until":"2026-03-01T12:01:00Z"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Signal
		if s.UnmarshalJSON(data) == nil && s.Validate() != nil {
			t.Errorf("read %+v, which is %v", s, s.Validate())
		}
	})
}

func TestGrade(t *testing.T) {
	for _, tc := range []struct {
		name          string
		last, floor   int64
		value, target float64
		want          int64
	}{
		{"at rest", 1000, 100, 0, 10, 1000},
		{"below target", 1000, 100, 9, 10, 1000},
		{"at target", 1000, 100, 10, 10, 1000},
		{"trembles above target", 1000, 100, 11, 10, 1000},
		{"clearly above", 1000, 100, 12.5, 10, 800},
		{"twice", 1000, 100, 20, 10, 500},
		{"below the floor", 1000, 100, 1000, 10, 100},
		{"floor zero", 1000, 0, 1e12, 10, 0},
		{"back from zero", 0, 0, 20, 10, 500},
		{"a little better", 500, 100, 19, 10, 500},
		{"clearly better", 500, 100, 16, 10, 625},
		{"last permille at target", 950, 100, 10, 10, 950},
		{"last permille below target", 950, 100, 9, 10, 1000},
		{"no load", 950, 100, 0, 10, 1000},
		{"negative", 500, 100, -3, 10, 1000},
		{"share", 1000, 100, 0.99, 0.8, 808},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Grade(tc.last, tc.floor, tc.value, tc.target); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}

// TestGradeSettles: whatever it was before, the factor is then within the dead band of what the metric says, and the
// same value moves it no further.
func TestGradeSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last, floor := rapid.Int64Range(0, 1000).Draw(t, "last"), rapid.Int64Range(0, 1000).Draw(t, "floor")
		last = max(last, floor)
		value, target := rapid.Float64Range(0, 1e6).Draw(t, "value"), rapid.Float64Range(1e-3, 1e6).Draw(t, "target")
		got := Grade(last, floor, value, target)
		if got < floor || got > Full {
			t.Fatalf("%d is out of bounds", got)
		}
		if again := Grade(got, floor, value, target); again != got {
			t.Fatalf("%d, then %d", got, again)
		}
	})
}
