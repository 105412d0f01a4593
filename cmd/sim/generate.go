package sim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Load describes a generated trace. The zero value of a field takes its default.
type Load struct {
	// Users of Models each send Rate requests a second to every model. Defaults 10, 1, 1.
	Users, Models int
	Rate          float64
	// Burst bunches arrivals: so many come at once, as seldom as the rate asks for. Default 1: a Poisson stream.
	Burst int
	// For is the length of the trace. Default 1 m.
	For time.Duration
	// Service is the mean service time, exponentially distributed. Default 300 ms.
	Service time.Duration
	// Tokens is the mean of input and of output tokens each. Default 0: none.
	Tokens int64
	// Seed makes it another trace; the same seed gives the same.
	Seed uint64
}

// Generate makes a trace. An error names the field that is out of bounds.
func Generate(l Load) ([]Request, error) {
	l.fill()
	if err := l.check(); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(l.Seed, 0x70656e73746f636b))
	start := time.Unix(0, 0).UTC()
	var out []Request
	for u := range l.Users {
		for m := range l.Models {
			user, model := fmt.Sprintf("user-%03d", u), fmt.Sprintf("model-%02d", m)
			for at := time.Duration(0); ; {
				at += exponential(rng, float64(l.Burst)/l.Rate*float64(time.Second))
				if at >= l.For {
					break
				}
				for range l.Burst {
					out = append(out, l.request(rng, start.Add(at), user, model))
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Request) int { return a.Time.Compare(b.Time.Time) })
	return out, nil
}

func (l Load) request(rng *rand.Rand, at time.Time, user, model string) Request {
	q := Request{
		Time: Instant{at}, User: user, Model: model,
		ServiceTime: Span(exponential(rng, float64(l.Service))),
	}
	if l.Tokens > 0 {
		q.InputTokens = 1 + rng.Int64N(2*l.Tokens)
		q.OutputTokens = 1 + rng.Int64N(2*l.Tokens)
	}
	return q
}

// exponential draws from an exponential distribution with that mean, cut at a hundred means.
func exponential(rng *rand.Rand, mean float64) time.Duration {
	return time.Duration(math.Min(rng.ExpFloat64(), 100) * mean)
}

func (l *Load) fill() {
	setDefault(&l.Users, 10)
	setDefault(&l.Models, 1)
	setDefault(&l.Rate, 1)
	setDefault(&l.Burst, 1)
	setDefault(&l.For, time.Minute)
	setDefault(&l.Service, 300*time.Millisecond)
}

func (l Load) check() error {
	var errs []error
	bad := func(ok bool, key string, v, least, most any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%w: %s: %v is outside %v to %v", ErrTrace, key, v, least, most))
		}
	}
	bad(l.Users >= 1 && l.Users <= 1_000_000, "users", l.Users, 1, 1_000_000)
	bad(l.Models >= 1 && l.Models <= 1000, "models", l.Models, 1, 1000)
	bad(l.Rate > 0 && l.Rate <= 1e6, "rate", l.Rate, "just above 0", 1e6)
	bad(l.Burst >= 1 && l.Burst <= 1_000_000, "burst", l.Burst, 1, 1_000_000)
	bad(l.For > 0 && l.For <= maxSpan, "for", l.For, "just above 0", maxSpan)
	bad(l.Service >= 0 && l.Service <= time.Hour, "service", l.Service, 0, time.Hour)
	bad(l.Tokens >= 0 && l.Tokens <= maxCost, "tokens", l.Tokens, 0, maxCost)
	if n := float64(l.Users) * float64(l.Models) * l.Rate * l.For.Seconds(); len(errs) == 0 && n > MaxRequests {
		errs = append(errs, fmt.Errorf("%w: about %.0f requests, the limit is %d", ErrTrace, n, MaxRequests))
	}
	return errors.Join(errs...)
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
