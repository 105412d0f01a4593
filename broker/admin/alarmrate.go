package admin

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/penstockmq/penstock/suspend/signal"
)

// errAlarmRate is answered with 503 and not 429: Alertmanager repeats a post after 5xx and
// drops it after 4xx.
var errAlarmRate = errors.New("too many alarms")

const (
	// alarmsPerSecond is the long-term rate of alerts of one sender, alarmBurst the number that
	// it may post at once: more than one post can contain.
	alarmsPerSecond = 100
	alarmBurst      = 2 * signal.MaxAlerts
	// unprovenShare is the multiple of these bounds for all senders without a proof together:
	// one of them cannot use it up.
	unprovenShare = 4
	// maxAlarmSenders bounds the remembered senders. Further addresses share the allowance of
	// all addresses.
	maxAlarmSenders = 1024
)

// allowance is the number of alerts that a sender may still post. The zero value is full.
type allowance struct {
	used float64 // used part of the burst
	at   time.Time
}

// take uses n alerts of the allowance, or returns the time until it has room for them.
func (a *allowance) take(now time.Time, n, perSecond, burst float64) (wait time.Duration) {
	a.used = max(0, a.used-max(0, now.Sub(a.at).Seconds())*perSecond)
	a.at = now
	if over := a.used + n - burst; over > 0 {
		return time.Duration(math.Ceil(over / perSecond * float64(time.Second)))
	}
	a.used += n
	return 0
}

// alarmRates bounds the rate of alarms of each sender.
type alarmRates struct {
	mu       sync.Mutex // guards the following fields
	senders  map[string]*allowance
	unproven allowance // of all addresses together
	refused  int64
}

// admit charges n alerts to a sender. Errors wrap errAlarmRate and name the bound.
func (r *alarmRates) admit(now time.Time, from sender, n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.of(now, from.name); a != nil {
		if wait := a.take(now, float64(n), alarmsPerSecond, alarmBurst); wait > 0 {
			return r.refuse(from.name, 1, wait)
		}
	}
	if from.proven {
		return nil
	}
	if wait := r.unproven.take(now, float64(n), unprovenShare*alarmsPerSecond, unprovenShare*alarmBurst); wait > 0 {
		return r.refuse("senders without a token", unprovenShare, wait)
	}
	return nil
}

func (r *alarmRates) refuse(who string, share int, wait time.Duration) error {
	r.refused++
	return &retryError{after: wait, err: fmt.Errorf("%w: %s may post %d alerts in a second, and %d at once",
		errAlarmRate, who, share*alarmsPerSecond, share*alarmBurst)}
}

func (r *alarmRates) count() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return float64(r.refused)
}

// of returns the allowance of a sender; nil if maxAlarmSenders are remembered already.
func (r *alarmRates) of(now time.Time, name string) *allowance {
	if a := r.senders[name]; a != nil {
		return a
	}
	if len(r.senders) >= maxAlarmSenders {
		for other, a := range r.senders {
			if now.Sub(a.at).Seconds()*alarmsPerSecond >= a.used { // its allowance is full again, as that of a new sender
				delete(r.senders, other)
			}
		}
	}
	if len(r.senders) >= maxAlarmSenders {
		return nil
	}
	a := &allowance{at: now}
	r.senders[name] = a
	return a
}

// sender is the origin of an alarm.
type sender struct {
	name   string // as in signal.Signal.Sender
	proven bool
}

// mayChange reports whether the sender may replace or resolve a signal: a sender without a
// proof cannot change a proven signal.
func (s sender) mayChange(was signal.Signal) bool { return s.proven || !was.Proven() }

// addressOf returns the sender of a request without a proof. An IPv6 host can choose among
// 2^64 addresses, so the sender is the network of its address.
func addressOf(r *http.Request) sender {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap().WithZone("")
		host = addr.String()
		if network, err := addr.Prefix(64); err == nil && addr.Is6() {
			host = network.String()
		}
	}
	return sender{name: signal.SenderAddress + host}
}

// retryError is a refusal with the time after which another try is useful.
type retryError struct {
	after time.Duration
	err   error
}

func (e *retryError) Error() string { return e.err.Error() }
func (e *retryError) Unwrap() error { return e.err }
