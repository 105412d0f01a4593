package policy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/penstockmq/penstock/suspend/limit"
)

func readObserved(r *Rule, s string) error {
	rate, err := limit.ParseRate(s)
	r.Observed = &limit.ObservedRate{Rate: rate}
	return err
}

// readSamples reads a number of samples, and their length if it is not a second: "11", "100x250ms".
func readSamples(r *Rule, s string) error {
	num, size, sized := strings.Cut(s, "x")
	n, err := parseWhole(num, 1, limit.MaxSamples)
	if err != nil {
		return fmt.Errorf("%w, with the length of a sample if it is not 1s, as in 11x2s", err)
	}
	r.Observed.Samples = int(n)
	if sized {
		r.Observed.Size, err = parseDuration(size, limit.MinWindow, limit.MaxWindow)
	}
	return err
}

func writeSamples(l *Limits) string {
	switch o := l.Observed; {
	case o.Samples == 0:
		return ""
	case o.Size == 0:
		return strconv.Itoa(o.Samples)
	default:
		return strconv.Itoa(o.Samples) + "x" + formatDuration(o.Size)
	}
}

func readObservedCap(r *Rule, s string) (err error) {
	r.Observed.Cap, err = parseDuration(s, limit.MinWindow, limit.MaxWindow)
	return err
}

func writeObservedCap(l *Limits) string { return orEmpty(l.Observed.Cap) }

func readWindowAt(r *Rule, s string) error {
	switch s {
	case Admission.String():
		r.WindowAt = Admission
	case Release.String():
		r.WindowAt = Release
	default:
		return fmt.Errorf("is %.64q, want admission or release", s)
	}
	return nil
}

func writeWindowAt(l *Limits) string { return l.WindowAt.String() }
