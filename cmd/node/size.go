package node

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. As text it has a unit: 512B, 64KiB, 4MiB, 1GiB, 2TiB.
type Size int64

// The units of a Size.
const (
	Byte Size = 1
	KiB       = Byte << 10
	MiB       = KiB << 10
	GiB       = MiB << 10
	TiB       = GiB << 10
)

// sizeUnits in the order in which a suffix is looked for: "B" ends them all.
var sizeUnits = []struct {
	name string
	size Size
}{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", Byte}}

// ParseSize reads a whole number with a unit. A number without one is refused: it is
// as often meant as megabytes as it is as bytes.
func ParseSize(text string) (Size, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil {
			break
		}
		if n < 0 || n > math.MaxInt64/int64(u.size) {
			return 0, fmt.Errorf("size %q is outside 0 to 8388607TiB", text)
		}
		return Size(n) * u.size, nil
	}
	return 0, fmt.Errorf("size %q: want a whole number and a unit, such as 512B, 64KiB, 4MiB, 1GiB", text)
}

// String writes the largest unit that divides s: it reads back as the same size.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.name
		}
	}
	return "0B"
}

// MarshalText implements [encoding.TextMarshaler].
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Size) UnmarshalText(text []byte) error {
	v, err := ParseSize(string(text))
	if err != nil {
		return err
	}
	*s = v
	return nil
}
