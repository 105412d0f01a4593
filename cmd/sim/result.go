package sim

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// Result is what a run came to.
type Result struct {
	Requests int `json:"requests"`
	Served   int `json:"served"`
	// Limited were answered 429 by the gateway, Dead cost more than their limit ever gives, Left were still queued or
	// running when the run ended.
	Limited int `json:"limited"`
	Dead    int `json:"dead"`
	Left    int `json:"left"`
	// SpanS is the time from the first arrival to the last end, in seconds.
	SpanS float64 `json:"span_s"`
	// Wait is from arrival to start, of what was served.
	Wait Waits `json:"wait"`
	// Fairness is Jain's index of the shares of their cost that users were served until the last arrival: 1 if a shortage
	// hit all alike, 1/n if one of n users had everything.
	Fairness float64      `json:"fairness"`
	Models   []ModelUse   `json:"models"`
	Users    []UserResult `json:"users"`

	// Outcomes has an entry for each request of the trace.
	Outcomes []Outcome `json:"-"`
}

// Waits are quantiles of waits, in milliseconds.
type Waits struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

// ModelUse is one model's share.
type ModelUse struct {
	Model    string `json:"model"`
	Requests int    `json:"requests"`
	Served   int    `json:"served"`
	Limited  int    `json:"limited"`
	Wait     Waits  `json:"wait"`
	// Running is the mean number of requests that ran at once, Peak the most.
	Running float64 `json:"running"`
	Peak    int     `json:"peak"`
	// Utilisation is Running over the model's in-flight limit; 0 if it has none.
	Utilisation float64 `json:"utilisation,omitempty"`
}

// UserResult is one user's share.
type UserResult struct {
	User     string `json:"user"`
	Requests int    `json:"requests"`
	Served   int    `json:"served"`
	Limited  int    `json:"limited"`
	Wait     Waits  `json:"wait"`
}

func (e *engine) result() *Result {
	r := &Result{Requests: len(e.trace), Outcomes: e.out}
	first, last := e.trace[0].Time.Time, e.trace[len(e.trace)-1].Time.Time
	end := first
	all := &tally{}
	users, models := map[string]*tally{}, map[string]*tally{}
	for i := range e.trace {
		o, q := &e.out[i], &e.trace[i]
		if o.Ended.After(end) {
			end = o.Ended
		}
		for _, t := range []*tally{all, of(users, q.User), of(models, q.Model)} {
			t.add(q, o, last)
		}
	}
	r.Served, r.Limited, r.Dead = all.served, all.limited, all.dead
	r.Left = r.Requests - r.Served - r.Limited - r.Dead
	r.SpanS, r.Wait = end.Sub(first).Seconds(), all.waiting()
	var shares []float64
	for _, name := range slices.Sorted(maps.Keys(users)) { // in this order: a sum of fractions depends on it
		t := users[name]
		shares = append(shares, t.share())
		r.Users = append(r.Users, UserResult{User: name, Requests: t.requests, Served: t.served, Limited: t.limited, Wait: t.waiting()})
	}
	r.Fairness = Jain(shares)
	for name, t := range models {
		use := ModelUse{Model: name, Requests: t.requests, Served: t.served, Limited: t.limited, Wait: t.waiting(), Peak: t.peak()}
		if r.SpanS > 0 {
			use.Running = t.busy.Seconds() / r.SpanS
		}
		if column, _ := e.doc.Column(name); column.InFlight > 0 {
			use.Utilisation = use.Running / float64(column.InFlight)
		}
		r.Models = append(r.Models, use)
	}
	slices.SortFunc(r.Models, func(a, b ModelUse) int { return cmp.Compare(a.Model, b.Model) })
	return r
}

// tally counts some of the requests.
type tally struct {
	requests, served, limited, dead int
	// asked and given are costs: of what arrived, and of what was served by the last arrival.
	asked, given int64
	busy         time.Duration
	waits        []time.Duration
	edges        []edge
}

// edge is a start or an end, for the peak.
type edge struct {
	at   time.Time
	step int
}

func of(m map[string]*tally, key string) *tally {
	t := m[key]
	if t == nil {
		t = &tally{}
		m[key] = t
	}
	return t
}

func (t *tally) add(q *Request, o *Outcome, horizon time.Time) {
	t.requests++
	t.asked += q.cost()
	switch {
	case o.Limited:
		t.limited++
		return
	case o.Dead:
		t.dead++
		return
	case o.Ended.IsZero():
		return
	}
	t.served++
	t.waits = append(t.waits, o.Started.Sub(q.Time.Time))
	t.busy += o.Ended.Sub(o.Started)
	t.edges = append(t.edges, edge{o.Started, 1}, edge{o.Ended, -1})
	if !o.Started.After(horizon) {
		t.given += q.cost()
	}
}

func (t *tally) share() float64 { return float64(t.given) / float64(t.asked) }

// peak is the most that ran at once; what ends at an instant makes room for what starts at it.
func (t *tally) peak() int {
	slices.SortFunc(t.edges, func(a, b edge) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.step, b.step)) })
	now, most := 0, 0
	for _, e := range t.edges {
		now += e.step
		most = max(most, now)
	}
	return most
}

func (t *tally) waiting() Waits {
	n := len(t.waits)
	if n == 0 {
		return Waits{}
	}
	slices.Sort(t.waits)
	at := func(q float64) float64 {
		return float64(t.waits[min(int(q*float64(n)), n-1)].Microseconds()) / 1000
	}
	return Waits{P50: at(0.5), P99: at(0.99), Max: at(1)}
}

// Jain is Jain's fairness index of shares, (Σx)² / (n·Σx²), from 1/n to 1; 1 if there are none or all are 0. Source:
// Jain, Chiu, Hawe: A Quantitative Measure of Fairness and Discrimination, DEC-TR-301, 1984.
func Jain(shares []float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// usersShown bounds the table of users: those that waited longest.
const usersShown = 20

// Print writes tables.
func (r *Result) Print(w io.Writer) error {
	fmt.Fprintf(w, "%d requests over %.1f s: %d served, %d limited, %d dead, %d left; fairness %.3f\n",
		r.Requests, r.SpanS, r.Served, r.Limited, r.Dead, r.Left, r.Fairness)
	fmt.Fprintf(w, "wait: p50 %.0f ms, p99 %.0f ms, max %.0f ms\n\n", r.Wait.P50, r.Wait.P99, r.Wait.Max)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MODEL\tREQUESTS\tSERVED\tLIMITED\tWAIT P50 MS\tP99 MS\tRUNNING\tPEAK\tUTILISATION")
	for _, m := range r.Models {
		utilisation := "-"
		if m.Utilisation > 0 {
			utilisation = fmt.Sprintf("%.0f %%", 100*m.Utilisation)
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.0f\t%.0f\t%.2f\t%d\t%s\n",
			m.Model, m.Requests, m.Served, m.Limited, m.Wait.P50, m.Wait.P99, m.Running, m.Peak, utilisation)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	slowest := slices.Clone(r.Users)
	slices.SortStableFunc(slowest, func(a, b UserResult) int { return cmp.Compare(b.Wait.P99, a.Wait.P99) })
	if len(slowest) > usersShown {
		slowest = slowest[:usersShown]
		fmt.Fprintf(w, "\nthe %d users that waited longest, of %d:\n", usersShown, len(r.Users))
	} else {
		fmt.Fprintln(w)
	}
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "USER\tREQUESTS\tSERVED\tLIMITED\tWAIT P50 MS\tP99 MS\tMAX MS")
	for _, u := range slowest {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.0f\t%.0f\t%.0f\n", u.User, u.Requests, u.Served, u.Limited, u.Wait.P50, u.Wait.P99, u.Wait.Max)
	}
	return t.Flush()
}
