package quota

import "testing"

// TestC55_WrongGuessOfInputIsLearned: calls whose input is more than was reserved for it. The second of two at once must
// see that the first takes more than half of the budget.
func TestC55_WrongGuessOfInputIsLearned(t *testing.T) {
	d := newDesk(document(t, `rows: [{user: u, tokens: 100/1m}]`))
	p := place("u", "m", 1)
	call := func() (Ticket, bool) {
		output := d.Expect(p, 200)
		return d.try(Ask{Place: p, Cost: Cost{Tokens: 2 + output, Output: output}})
	}
	first, ok := call()
	if !ok {
		t.Fatal("the first call does not pass")
	}
	d.free(p, first, Settlement{Outcome: Used, Tokens: 58, OutputTokens: 32}) // so its input was 26
	second, ok := call()
	if !ok || second.Tokens != 58 {
		t.Errorf("the second passes: %v; %d tokens are reserved for it, want 58", ok, second.Tokens)
	}
	if _, ok := call(); ok {
		t.Errorf("a third passes, with 58 used and %d reserved of 100", second.Tokens)
	}
}
