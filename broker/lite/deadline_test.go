package lite

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseDeadline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value string
		want  time.Time
		fails bool
	}{
		{value: ""},
		{value: "1", want: time.UnixMilli(1)},
		{value: "1774440000000", want: time.Date(2026, 3, 25, 12, 0, 0, 0, time.UTC)},
		{value: "9223372036853", want: time.UnixMilli(9223372036853)},
		{value: "9223372036854"},       // the year 2262
		{value: "32503680000000"},      // the year 3000
		{value: "9007199254740991"},    // JavaScript's Number.MAX_SAFE_INTEGER
		{value: "9223372036854775807"}, // Java's Long.MAX_VALUE
		{value: "9223372036854775808", fails: true},
		{value: "0", fails: true},
		{value: "-1", fails: true},
		{value: "1e12", fails: true},
		{value: "tomorrow", fails: true},
	} {
		got, err := ParseDeadline(c.value)
		if !got.Equal(c.want) || (err != nil) != c.fails {
			t.Errorf("%q: got %v, %v, want %v", c.value, got, err, c.want)
		}
		if err != nil && (!errors.Is(err, ErrDeadline) || !strings.Contains(err.Error(), c.value) || !strings.Contains(err.Error(), PropertyDeadline)) {
			t.Errorf("%q: error %v does not name property and value", c.value, err)
		}
	}
}
