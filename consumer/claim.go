package consumer

import (
	"strconv"
	"time"

	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/quota"
)

// claim is what a message asks the limits for. It says the same of a message as the broker does when it asks.
type claim struct {
	cell      lite.Cell
	place     suspend.Place // its level is the ledger's to say
	level     int8          // stamped by the sender; unstamped: by the policy
	cost      quota.Cost    // its tokens are the input alone
	maxOutput int64         // tokens; 0: no bound
	since     time.Time     // when the message came to its bucket
}

const unstamped = -1

func claimOf(m *mq.Message, cell lite.Cell, requests int64) claim {
	c := claim{
		cell:      cell,
		place:     suspend.Place{Bucket: m.Lite, User: cell.User, Model: cell.Model},
		level:     unstamped,
		cost:      quota.Cost{Requests: requests, Tokens: stamp(m, lite.PropertyInputTokens, 0, lite.MaxTokens), BytesIn: int64(len(m.Body))},
		maxOutput: stamp(m, lite.PropertyMaxTokens, 0, lite.MaxTokens),
	}
	for _, at := range []time.Time{m.Stored, m.Born, m.Received} {
		if !at.IsZero() {
			c.since = at.Round(0)
			break
		}
	}
	c.level = int8(stamp(m, lite.PropertyLevel, unstamped, lite.MaxLevel))
	return c
}

// requestsOf is how many requests a message counts as.
func requestsOf(m *mq.Message) int64 { return stamp(m, lite.PropertyCost, 1, lite.MaxCost) }

// stamp is the number of a property, or low if it is none within the limits: a broker of another kind passes on anything.
func stamp(m *mq.Message, key string, low, high int64) int64 {
	v, err := strconv.ParseInt(m.Properties[key], 10, 64)
	if err != nil || v < low || v > high {
		return low
	}
	return v
}
