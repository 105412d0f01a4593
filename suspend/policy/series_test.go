package policy

import (
	"strings"
	"testing"
)

func TestParseSeries(t *testing.T) {
	for in, want := range map[string]string{
		"up":                                 "up",
		" vllm:kv_cache ":                    "vllm:kv_cache",
		"a{}":                                "a",
		`a { b = "c" , d="e", }`:             `a{b="c",d="e"}`,
		`a{z="1",b="x\"}\\\n"}`:              `a{b="x\"}\\\n",z="1"}`,
		`a{b=""}`:                            `a{b=""}`,
		strings.Repeat("a", 128) + `{b="c"}`: strings.Repeat("a", 128) + `{b="c"}`,
	} {
		name, labels, err := ParseSeries(in)
		if got := formatSeries(name, labels); err != nil || got != want {
			t.Errorf("ParseSeries(%q) = %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "1a", "a b", "a{", "a{b}", `a{b="c"`, `a{b="c"}x`, `a{b='c'}`, `a{b=c}`, `a{b!="c"}`, `a{b="c" d="e"}`, `a{b="c",b="d"}`,
		`a{:b="c"}`, `{b="c"}`, strings.Repeat("a", 129), `a{b="` + strings.Repeat("c", 257) + `"}`, "a" + strings.Repeat(" ", 1024), "a{b=`c`}",
	} {
		if name, labels, err := ParseSeries(in); err == nil {
			t.Errorf("ParseSeries(%q) = %q %v", in, name, labels)
		}
	}
}

func TestFractions(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "1": 1000, "1.0": 1000, "0.5": 500, "0.125": 125, "0.001": 1, "1.": 1000, "0.50000": 500} {
		got, err := parseFraction(in)
		if err != nil || got != want {
			t.Errorf("parseFraction(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for permille := range int64(full + 1) {
		if got, err := parseFraction(formatFraction(permille)); err != nil || got != permille {
			t.Errorf("%d is written %q and read %d, %v", permille, formatFraction(permille), got, err)
		}
	}
	for _, in := range []string{"", ".5", "1.001", "2", "-0", "+1", "0.0001", "1e-1", "00.5", "0,5", "0.5.", "0.-5", "NaN", "0._5"} {
		if got, err := parseFraction(in); err == nil {
			t.Errorf("parseFraction(%q) = %d", in, got)
		}
	}
}
