package consumer

import (
	"math/rand/v2"
	"time"

	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/suspend/limit"
	"github.com/penstockmq/penstock/suspend/quota"
)

// unused is the settlement of a message that no downstream was asked for.
func unused() mq.Settlement {
	return mq.Settlement{Outcome: mq.OutcomeUnused, InputTokens: -1, OutputTokens: -1}
}

// settlementOf is what an outcome tells the account of its cell.
func settlementOf(o forward.Outcome) mq.Settlement {
	if o.Unsent {
		return unused()
	}
	s := mq.Settlement{
		InputTokens: known(o.Spent.Input), OutputTokens: known(o.Spent.Output), BytesOut: o.Spent.BytesOut, Latency: o.Spent.FirstByte,
	}
	if o.Kind == forward.Refused && s.OutputTokens < 0 { // nothing was generated
		s.InputTokens, s.OutputTokens = 0, 0
	}
	switch o.Feedback() {
	case forward.Good:
		s.Outcome = mq.OutcomeGood
	case forward.Overload:
		s.Outcome = mq.OutcomeOverload
	case forward.Timeout:
		s.Outcome = mq.OutcomeTimeout
	case forward.Broken:
		s.Outcome = mq.OutcomeFailed
	case forward.Silent:
		// It was stopped on its way: the model may have worked for it, so what is not known stays charged.
		s.Outcome = mq.OutcomeUnknown
		if s.OutputTokens >= 0 {
			s.Outcome = mq.OutcomeFailed
		}
	}
	return s
}

func known(tokens int64) int64 {
	if tokens <= 0 {
		return -1
	}
	return tokens
}

// ledgered is s as the pool's own ledger takes it: what the broker makes of it with penstock.v1.
func ledgered(s mq.Settlement) quota.Settlement {
	q := quota.Settlement{Outcome: quota.Used, Tokens: -1, OutputTokens: s.OutputTokens, BytesOut: s.BytesOut, Latency: s.Latency}
	if s.InputTokens >= 0 && s.OutputTokens >= 0 {
		q.Tokens = s.InputTokens + s.OutputTokens
	}
	switch s.Outcome {
	case mq.OutcomeUnknown:
		q.Outcome = quota.Unknown
	case mq.OutcomeGood:
		q.Feedback = limit.Good
	case mq.OutcomeOverload:
		q.Outcome, q.Feedback = q.OfFailure(), limit.Overload
	case mq.OutcomeTimeout:
		q.Feedback = limit.Timeout
	case mq.OutcomeFailed:
		q.Outcome = q.OfFailure()
	case mq.OutcomeUnused:
		q.Outcome = quota.Unsent
	}
	return q
}

// spread is d and up to a fifth of it more: who was told the same does not come back in the same moment (case C82).
func spread(d time.Duration) time.Duration { return d + rand.N(d/5+1) }
