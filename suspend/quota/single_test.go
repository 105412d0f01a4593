package quota

import (
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

// A message that counts for a million requests, as any producer may say, must not close a column for hours.
func TestOneMessageCannotCloseAColumnForHours(t *testing.T) {
	for _, c := range []struct {
		policy string
		most   int64 // requests that one message may count as
		limit  string
	}{
		{"columns: [{model: m, rate: 5/s}]", 300 + 1, "rate"},
		{"columns: [{model: m, rate: 300/1m}]", 300 + 1, "rate"},
		{"columns: [{model: m, rate: 1000/1h}]", 1000 + 1, "rate"},
		{"columns: [{model: m, quota: 5/s, quota_burst: 500}]", 800, "quota"},
		{"levels: [{level: 2, quota: 5/s, quota_burst: 500}]", 800, "quota"},
		{"broker: {quota: 10/s, quota_burst: 20}", 620, "quota"},
		{"columns: [{model: m, quota: 5/s, quota_burst: 500}]\nbroker: {quota: 1/s, quota_burst: 1}", 61, "quota"},
	} {
		d := newDesk(document(t, c.policy))
		p := place("u", "m", 2)
		fits := func(n int64) (Gate, bool) { return d.Fits(d.now, Ask{Place: p, Cost: Cost{Requests: n}}) }
		if g, ok := fits(c.most); !ok {
			t.Errorf("%s: a message of %d is refused: %+v", c.policy, c.most, g)
		}
		for _, n := range []int64{c.most + 1, 1_000_000} {
			if g, ok := fits(n); ok || !g.Never || g.Limit != c.limit || g.Of.Scope <= suspend.Row {
				t.Errorf("%s: a message of %d: %+v, %v", c.policy, n, g, ok)
			}
		}
		d.Charge(d.now, Ask{Place: p, Cost: Cost{Requests: c.most}})
		if g, ok := fits(c.most + 1); ok || !g.Never {
			t.Errorf("%s: with an account: %+v, %v", c.policy, g, ok)
		}
	}
}

// The limits of a cell and a row are their user's own: a large message is paid for afterwards.
func TestOwnLimitsLetALargeMessageGoIntoDebt(t *testing.T) {
	for _, text := range []string{"limits: [{user: u, model: m, rate: 5/s}]", "rows: [{user: u, quota: 5/s}]"} {
		d := newDesk(document(t, text))
		if g, ok := d.Fits(d.now, Ask{Place: place("u", "m", 1), Cost: Cost{Requests: 100_000}}); !ok {
			t.Errorf("%s: %+v", text, g)
		}
	}
}

// A caller that allows its answer a million tokens reserves no more of a column than that gives in a minute, and whatever
// was reserved and not used comes back when the request ends.
func TestOneMessageReservesAMinuteOfAColumn(t *testing.T) {
	for name, s := range map[string]Settlement{
		"used":      {Outcome: Used, Tokens: 120, OutputTokens: 20},
		"refused":   {Outcome: Unused, Tokens: -1, OutputTokens: -1},
		"never ran": {Outcome: Unsent, Tokens: -1, OutputTokens: -1},
	} {
		d := newDesk(document(t, "columns: [{model: m, tokens: 10000/1m}]"))
		p := place("u", "m", 1)
		output := d.Expect(p, 1_000_000_000)
		ticket := d.Charge(d.now, Ask{Place: p, Cost: Cost{Requests: 1, Tokens: 100 + output, Output: output}})
		if ticket.Tokens != 10_000 || ticket.Output > ticket.Tokens {
			t.Errorf("%s: %+v reserved", name, ticket)
		}
		column := suspend.Target{Scope: suspend.Column, Name: "m"}
		if g, closed := d.Look(d.now, column); !closed || g.Until.After(d.now.Add(time.Minute)) {
			t.Errorf("%s: closed %v until %s later", name, closed, g.Until.Sub(d.now))
		}
		d.Free(d.now, p, ticket, s)
		if g, closed := d.Look(d.now, column); closed {
			t.Errorf("%s: closed until %s after the request has ended", name, g.Until.Sub(d.now))
		}
		if want := max(s.Tokens, 0); used(d, p) != want {
			t.Errorf("%s: %d tokens used, want %d", name, used(d, p), want)
		}
	}
}

func used(d *desk, p suspend.Place) int64 {
	for _, line := range d.Explain(d.now, p) {
		if line.Limit == "tokens" {
			return line.Used
		}
	}
	return -1
}
