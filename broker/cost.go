package broker

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/penstockmq/penstock/broker/dispatch"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/store"
)

// unstamped is the level of a message whose sender leaves it to the policy.
const unstamped = -1

// stamps are the properties with which a sender says what its message counts for.
var stamps = [...]struct {
	key       string
	low, high int64
}{
	{lite.PropertyLevel, 0, lite.MaxLevel},
	{lite.PropertyInputTokens, 0, lite.MaxTokens},
	{lite.PropertyMaxTokens, 0, lite.MaxOutputTokens},
	{lite.PropertyCost, 1, lite.MaxCost},
}

// checkStamps refuses stamps that say nothing and returns the level: a limit that
// counted such a message as nothing would be one that a typing error turns off.
func checkStamps(properties map[string]string) (level int8, err error) {
	level = unstamped
	for _, s := range stamps {
		text, ok := properties[s.key]
		if !ok {
			continue
		}
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v < s.low || v > s.high {
			return 0, fmt.Errorf("%w: property %s %.64q is not a whole number from %d to %d", ErrInvalidArgument, s.key, text, s.low, s.high)
		}
		if s.key == lite.PropertyLevel {
			level = int8(v)
		}
	}
	return level, nil
}

// moreImportant is the level of several messages: the most important that was stamped.
func moreImportant(a, b int8) int8 {
	if a == unstamped || b == unstamped {
		return max(a, b)
	}
	return min(a, b)
}

// costOf returns the cost of a recovered message to the machine, which knows the cost of
// all others. It runs in the loop and costs one point read, only when a limit or fairness
// counts more than requests.
func (o *owner) costOf(id dispatch.BucketID, off dispatch.Offset) dispatch.MessageCost {
	if m := o.cache.get(messageKey{id, off}); m != nil {
		return messageCost(m, len(m.Body))
	}
	m, size, err := o.store.MessageHeader(uint64(id), uint64(off))
	switch {
	case errors.Is(err, store.ErrNotFound): // settled when it is read, and given back
		return dispatch.MessageCost{}
	case err != nil:
		o.log.Error("message unreadable", "topic", o.name, "bucket", uint64(id), "offset", uint64(off), "error", err)
		return dispatch.MessageCost{}
	}
	return messageCost(m, size)
}

// messageCost reads a message's stamps, which Send has checked. Those of a message
// that an older broker stored may be anything, and count as absent then.
func messageCost(m *store.Message, bodyBytes int) dispatch.MessageCost {
	cost := dispatch.MessageCost{Requests: 1, Bytes: int64(bodyBytes)}
	for _, p := range m.Properties {
		switch p.Key {
		case lite.PropertyInputTokens:
			cost.Input = stamped(p.Value, 0, lite.MaxTokens)
		case lite.PropertyMaxTokens:
			cost.MaxOutput = stamped(p.Value, 0, lite.MaxTokens)
		case lite.PropertyCost:
			cost.Requests = stamped(p.Value, 1, lite.MaxCost)
		}
	}
	return cost
}

// stamped is the number of a stamp, or low if it is none within the limits.
func stamped(text string, low, high int64) int64 {
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < low || v > high {
		return low
	}
	return v
}

// stampedLevel is the level that a message's sender stamped on it, or unstamped.
func stampedLevel(m *store.Message) int8 {
	v, ok := m.Property(lite.PropertyLevel)
	if !ok {
		return unstamped
	}
	return int8(stamped(v, 0, lite.MaxLevel))
}
