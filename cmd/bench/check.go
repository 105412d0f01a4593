package bench

import (
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// ErrChecks says that a scenario ran and did not show what it has to show.
var ErrChecks = errors.New("the scenario did not show what it should")

// Check is one thing that a scenario has to show. Got was measured, never taken from a configuration.
type Check struct {
	Name string  `json:"name"`
	Want string  `json:"want"` // for people, such as "50 ± 1"
	Got  float64 `json:"got"`
	OK   bool    `json:"ok"`
}

// Checks are a scenario's; embedded in its result.
type Checks struct {
	OK   bool    `json:"ok"`
	List []Check `json:"checks"`
}

// Passed is whether all checks are good.
func (c *Checks) Passed() bool { return c.OK }

// Err is ErrChecks, naming the checks that are not good; nil if all are.
func (c *Checks) Err() error {
	if c.OK {
		return nil
	}
	var names []error
	for _, x := range c.List {
		if !x.OK {
			names = append(names, fmt.Errorf("%s: %g, want %s", x.Name, x.Got, x.Want))
		}
	}
	return fmt.Errorf("%w: %w", ErrChecks, errors.Join(names...))
}

// within checks |got - want| ≤ by.
func (c *Checks) within(name string, got, want, by float64) {
	c.add(name, fmt.Sprintf("%g ± %g", want, by), got, math.Abs(got-want) <= by)
}

// atMost checks got ≤ want.
func (c *Checks) atMost(name string, got, want float64) {
	c.add(name, fmt.Sprintf("≤ %g", want), got, got <= want)
}

// atLeast checks got ≥ want.
func (c *Checks) atLeast(name string, got, want float64) {
	c.add(name, fmt.Sprintf("≥ %g", want), got, got >= want)
}

func (c *Checks) add(name, want string, got float64, ok bool) {
	if len(c.List) == 0 {
		c.OK = true
	}
	ok = ok && !math.IsNaN(got)
	if math.IsNaN(got) || math.IsInf(got, 0) {
		got = -1 // JSON has neither
	}
	c.List = append(c.List, Check{Name: name, Want: want, Got: math.Round(got*1000) / 1000, OK: ok})
	c.OK = c.OK && ok
}

// print writes the checks as a table.
func (c *Checks) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nCHECK\tWANT\tGOT\t")
	for _, x := range c.List {
		verdict := "ok"
		if !x.OK {
			verdict = "MISSED"
		}
		fmt.Fprintf(t, "%s\t%s\t%g\t%s\n", x.Name, x.Want, x.Got, verdict)
	}
	return t.Flush()
}
