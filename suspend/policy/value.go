package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstockmq/penstock/suspend/limit"
)

// Bounds of what a document may say.
const (
	MaxDepth      = 1_000_000_000
	MaxDepthBytes = 1 << 40
	MaxInFlight   = 1_000_000
	MaxWeight     = 1000
	MinDeadline   = time.Millisecond
	MaxDeadline   = limit.MaxWindow
)

// anyInFlight is what "unlimited" means for a cell's messages out at once: 0 would stand for what its consumer group says.
const anyInFlight = MaxInFlight + 1

// unlimited is the value that ends the search for a limit without one.
const unlimited = "unlimited"

// byteUnits are the suffixes of sizes, each before those it ends with.
var byteUnits = [...]struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
	{"kB", 1e3},
	{"KB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"B", 1},
}

func parseWhole(s string, least, most int64) (int64, error) {
	return parseInt(s, least, most, "")
}

// parseCount is parseWhole for limits, which may be unlimited.
func parseCount(s string, most int64) (int64, error) {
	return parseInt(s, 1, most, ", or unlimited")
}

func parseInt(s string, least, most int64, orElse string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%.64q is not a whole number", s)
	case err != nil, n < least, n > most:
		return 0, fmt.Errorf("is %.64s, it must be from %d to %d%s", s, least, most, orElse)
	}
	return n, nil
}

// parseBytes reads a whole number of bytes with an optional unit.
func parseBytes(s string) (int64, error) {
	digits, unit := s, int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, unit = strings.TrimRight(rest, " "), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%.64q is not a size such as 64MiB or 500kB", s)
	case err != nil, n < 1, n > MaxDepthBytes/unit: // by division: n*unit may not fit
		return 0, fmt.Errorf("is %.64s, it must be from 1B to 1TiB, or unlimited", s)
	}
	return n * unit, nil
}

// formatBytes is the shortest exact text that parseBytes reads as n, in binary units.
func formatBytes(n int64) string {
	for _, u := range [...]struct {
		suffix string
		bytes  int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// formatByteRate is a rate of bytes as limit.ParseByteRate reads it, such as 10MiB/s.
func formatByteRate(r limit.Rate) string {
	_, per, _ := strings.Cut(r.String(), "/")
	return formatBytes(r.Events) + "/" + per
}
