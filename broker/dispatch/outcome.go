package dispatch

import (
	"time"

	"github.com/penstockmq/penstock/suspend/quota"
)

// Then is what becomes of a message whose worker has told what it learned.
type Then struct {
	act        then
	d          time.Duration
	by, reason string
}

type then uint8

const (
	thenAck then = iota
	thenSuspend
	thenRetry
	thenReject
)

// ThenAck settles it, as Ack does.
func ThenAck() Then { return Then{} }

// ThenSuspend gives it back and holds its bucket for d, as Suspend does.
func ThenSuspend(d time.Duration, by, reason string) Then {
	return Then{act: thenSuspend, d: d, by: by, reason: reason}
}

// ThenRetry has it delivered again after d, as a failed attempt. As with
// ChangeInvisible it keeps its place in its bucket until then; of limits it is freed now.
func ThenRetry(d time.Duration) Then { return Then{act: thenRetry, d: d} }

// ThenReject makes it a dead letter, as DeadLetter does.
func ThenReject(reason string) Then { return Then{act: thenReject, reason: reason} }

// Settle ends a delivery with what its worker learned of its cost. A handle that is
// not current settles nothing; what follows then is that of Ack, Suspend,
// ChangeInvisible or DeadLetter.
func (m *Machine) Settle(now time.Time, h Handle, s quota.Settlement, t Then) error {
	switch t.act {
	case thenSuspend:
		return m.Suspend(now, h, t.d, t.by, t.reason)
	case thenRetry:
		_, err := m.ChangeInvisible(now, h, t.d)
		return err
	case thenReject:
		return m.DeadLetter(now, h, t.reason)
	case thenAck:
	}
	return m.Ack(now, h)
}
