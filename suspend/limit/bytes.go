package limit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteUnits are the suffixes of a number of bytes; longer ones first, as B ends all of them.
var byteUnits = [...]struct {
	name string
	size int64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"kB", 1e3},
	{"KB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"B", 1},
}

// ParseByteRate reads a rate as ParseRate does, with or without a unit of bytes: "10MiB/s", "500kB/1m", "1000/s".
// Errors wrap ErrInvalid.
func ParseByteRate(s string) (Rate, error) {
	count, span, ok := strings.Cut(s, "/")
	n, err := parseBytes(count)
	if !ok || err != nil {
		return ParseRate(s) // which says what is wrong
	}
	r, err := ParseRate("1/" + span)
	if err != nil {
		return Rate{}, err
	}
	r.Events = n
	for r.Events > MaxEvents && r.Events%10 == 0 && r.Per%10 == 0 && r.Per/10 >= MinWindow {
		r.Events, r.Per = r.Events/10, r.Per/10 // 5GB/s is 500MB/100ms
	}
	return r, r.Validate()
}

// parseBytes reads a whole number with or without a unit of bytes.
func parseBytes(s string) (int64, error) {
	size := int64(1)
	for _, u := range byteUnits {
		if number, ok := strings.CutSuffix(s, u.name); ok {
			s, size = number, u.size
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil:
		return 0, err
	case n > math.MaxInt64/size || n < math.MinInt64/size:
		return 0, fmt.Errorf("%w: %s times %d bytes is too much", ErrInvalid, s, size)
	}
	return n * size, nil
}
