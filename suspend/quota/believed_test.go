package quota

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
)

// TestAbsurdUsageIsNotBelieved: one answer that says it used a hundred thousand million tokens, or one caller who allows as
// many, must not close a model for everybody for years.
func TestAbsurdUsageIsNotBelieved(t *testing.T) {
	doc, err := policy.Parse([]byte("version: 1\ncolumns: [{model: m, tokens: 1000000/1m}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	const absurd = 99_999_999_999
	for name, s := range map[string]Settlement{
		"tokens":        {Outcome: Used, Tokens: absurd, OutputTokens: 10},
		"output tokens": {Outcome: Used, Tokens: -1, OutputTokens: absurd},
	} {
		l, now := New(doc), time.Unix(1_000_000, 0)
		p := suspend.Place{Bucket: "a__m", User: "a", Model: "m"}
		ticket := l.Charge(now, Ask{Place: p, Cost: Cost{Requests: 1, Tokens: 100, Output: 50}})
		l.Free(now, p, ticket, s)
		var used int64
		for _, line := range l.Explain(now, p) {
			if line.Limit == "tokens" {
				used = line.Used
			}
		}
		if used != 100 {
			t.Errorf("%s: %d used, want the 100 that were reserved", name, used)
		}
	}
	l := New(doc)
	p := suspend.Place{Bucket: "a__m", User: "a", Model: "m"}
	if got := l.Expect(p, absurd); got != MaxExpected {
		t.Errorf("%d output tokens are expected of a caller who allows %d, want at most %d", got, int64(absurd), MaxExpected)
	}
}
