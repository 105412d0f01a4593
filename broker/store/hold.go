package store

import "time"

const holdVersion = 1

// Hold is a suspend: a bucket, row, column, level or everything of a group stays
// shut until an instant. The scope is the number that package suspend gives it.
type Hold struct {
	Group  uint32
	Scope  uint8
	Name   string
	Until  time.Time
	By     string
	Reason string
}

func (h *Hold) appendValue(dst []byte) []byte {
	dst = append(dst, holdVersion)
	dst = appendUntil(dst, h.Until)
	dst = appendString(dst, h.By)
	return appendString(dst, h.Reason)
}

func decodeHold(key, value []byte) (Hold, error) {
	k := keyFields{rest: key}
	k.skipTable()
	h := Hold{Group: k.uint32(), Scope: k.uint8(), Name: k.string()}
	if err := k.err("hold"); err != nil {
		return Hold{}, err
	}
	d := newDecoder(string(value), holdVersion)
	h.Until = d.time()
	h.By = d.string()
	h.Reason = d.string()
	if err := d.err("hold"); err != nil {
		return Hold{}, err
	}
	return h, nil
}
