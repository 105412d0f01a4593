package policy_test

import (
	"fmt"

	"github.com/penstockmq/penstock/suspend/policy"
)

func ExampleDocument_Resolve() {
	doc, err := policy.Parse([]byte(`
version: 1
limits:
  - {user: alice, rate: 20/s, burst: 100ms}
  - {user: "*", model: "*", rate: 5/s, depth: 1000}
  - {model: gpt-4o, window: 100/1m}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, l := range doc.Resolve("alice", "gpt-4o").Explain() {
		if l.Line > 0 { // some rule decided it
			fmt.Printf("%s: %s (%s)\n", l.Limit, l.Value, l.From)
		}
	}
	// Output:
	// rate: 20/s burst 100ms (user)
	// window: 100/1m at admission (model)
	// depth: 1000 (default user+default model)
}

func ExampleParse_faults() {
	_, err := policy.Parse([]byte(`
version: 1
limits:
  - {user: alice, rate: 5/fortnight}
  - {model: "*", burst: 1s, depth: 10}
`))
	fmt.Println(err)
	// Output:
	// policy line 4: limits[0].rate: invalid limit: "fortnight" is neither a unit (ms, s, m, h) nor a duration, want a rate such as 5/s or 30/1m
	// policy line 5: limits[1].burst: is the tolerance of a rate, and this rule sets none
}

func ExampleDocument_Marshal() {
	doc, err := policy.Parse([]byte("version: 1\nlimits: [{model: '*', depth_bytes: 1024}, {user: bob, rate: 60/1m}]"))
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := doc.Marshal()
	fmt.Print(string(text), err)
	// Output:
	// version: 1
	// limits:
	//   - {user: bob, rate: 60/m}
	//   - {model: '*', depth_bytes: 1KiB}
	// <nil>
}
