package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// alarmsPath is where alarms are posted. It has no /api: it is for monitoring, not for
// operators.
const alarmsPath = "/v1/alarms"

// alarmsMax bounds the work for one post; a webhook of Alertmanager waits no longer.
const alarmsMax = 10 * time.Second

var (
	errNoSignals = errors.New("this process has no load signals")
	errToken     = errors.New("the bearer token is missing or wrong")
	errTooLarge  = errors.New("the body is too large")
)

// SignalStore keeps the load signals of an installation; [live.Signals] is the one there is.
type SignalStore interface {
	Publish(ctx context.Context, s signal.Signal) error
	Clear(ctx context.Context, target suspend.Target, source string) error
	All() []signal.Signal
	// Displaced counts the alarms that were displaced by other alarms.
	Displaced() int64
}

// AlarmReport is the answer to a post of alarms.
type AlarmReport struct {
	Raised   int `json:"raised"`   // signals that a firing alert set or renewed
	Resolved int `json:"resolved"` // signals that a resolved alert ended, or left to their hold-down
	Ignored  int `json:"ignored"`  // alerts that match no alarm of the policy, name no column or came too late
}

// postAlarms takes Alertmanager's webhook, and messages of SNS.
//
// Both senders repeat a post that was answered with 5xx and drop one that was answered
// with 4xx. So what can never succeed is 4xx, and what failed on this side 5xx; a
// repeated post does no harm, for each signal has the alert for its source.
func (s *Server) postAlarms(r *http.Request) (int, any, error) {
	if s.alarms.signals == nil {
		return 0, nil, errNoSignals
	}
	if s.policy == nil {
		return 0, nil, errNoPolicy
	}
	ctx, cancel := context.WithTimeout(r.Context(), alarmsMax)
	defer cancel()
	if isSNS(r) {
		// Until its signature is checked, the post counts for its address.
		if err := s.alarms.rates.admit(time.Now(), addressOf(r), 1); err != nil {
			return 0, nil, err
		}
		body, err := readAlarm(r)
		if err != nil {
			return 0, nil, err
		}
		report, err := s.fromSNS(ctx, time.Now().Round(0), body)
		return http.StatusOK, report, err
	}
	from, ok := s.alarms.sender(r)
	if !ok {
		return 0, nil, errToken
	}
	if err := s.alarms.rates.admit(time.Now(), from, 1); err != nil {
		return 0, nil, err
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return 0, nil, errMediaType
	}
	body, err := readAlarm(r)
	if err != nil {
		return 0, nil, err
	}
	alerts, err := signal.ParseAlertmanager(body)
	if err != nil {
		return 0, nil, err
	}
	if err := s.alarms.rates.admit(time.Now(), from, len(alerts)); err != nil {
		return 0, nil, err
	}
	report, err := s.takeAlerts(ctx, time.Now().Round(0), from, alerts)
	return http.StatusOK, report, err
}

func readAlarm(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, signal.MaxAlertBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errBody, err)
	case len(body) > signal.MaxAlertBytes:
		return nil, fmt.Errorf("%w: more than %d bytes", errTooLarge, signal.MaxAlertBytes)
	}
	return body, nil
}

// alarmOptions are the [Options] for alarms; immutable but for rates.
type alarmOptions struct {
	signals SignalStore
	token   string
	sns     *snsReceiver
	rates   *alarmRates
}

// sender returns the origin of the post; false if the token is missing or wrong. It compares
// digests, so that its time reveals neither a part of the token nor its length.
func (a *alarmOptions) sender(r *http.Request) (sender, bool) {
	if a.token == "" {
		return addressOf(r), true
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	want, got := sha256.Sum256([]byte(a.token)), sha256.Sum256([]byte(given))
	return sender{name: signal.SenderToken, proven: true}, strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// proves says whether the request has to prove where it comes from, by a token or a
// signature. A web page can do neither, so such a request may come by any host name:
// alarms of SNS come through a proxy, with the proxy's name.
func (a *alarmOptions) proves(r *http.Request) bool {
	return r.URL.Path == alarmsPath && (isSNS(r) || a.token != "")
}

// takeAlerts makes signals of the alerts that the policy knows. The first that cannot be
// published ends it: the sender repeats them all.
func (s *Server) takeAlerts(ctx context.Context, now time.Time, from sender, alerts []signal.Alert) (AlarmReport, error) {
	var report AlarmReport
	mappings := mappingsOf(s.policy.Current().Alarms())
	raised := make(map[string][]signal.Signal) // by the alert's fingerprint
	for _, sig := range s.alarms.signals.All() {
		if _, fingerprint, ok := sig.Origin(); ok {
			raised[fingerprint] = append(raised[fingerprint], sig)
		}
	}
	for _, a := range alerts {
		take := s.raise
		if a.Resolved {
			take = s.resolve
		}
		n, err := take(ctx, now, from, a, raised[a.Fingerprint], mappings)
		if err != nil {
			return AlarmReport{}, err
		}
		switch {
		case n == 0:
			report.Ignored++
		case a.Resolved:
			report.Resolved += n
		default:
			report.Raised += n
		}
	}
	return report, nil
}

// raise publishes a signal for each mapping that the alert matches, and returns how many.
func (s *Server) raise(ctx context.Context, now time.Time, from sender, a signal.Alert, raised []signal.Signal, mappings []signal.Mapping) (int, error) {
	n := 0
	for _, m := range mappings {
		if !m.Matches(a) {
			continue
		}
		sig, err := m.Raise(now, a)
		if err != nil {
			s.log.Warn("alert ignored", "alarm", m.Name, "error", err)
			continue
		}
		sig.Sender = from.name
		if overtaken(a, from, sig, raised) {
			continue
		}
		if err := s.alarms.signals.Publish(ctx, sig); err != nil {
			return n, err
		}
		n++
		s.log.Info("load alarm raised", "alarm", m.Name, "target", sig.Target, "permille", sig.Permille, "until", sig.Until)
	}
	return n, nil
}

// overtaken reports whether a later signal than the alert exists, or a signal that the
// sender may not replace.
func overtaken(a signal.Alert, from sender, sig signal.Signal, raised []signal.Signal) bool {
	for _, was := range raised {
		if was.Target == sig.Target && was.Source == sig.Source && (was.Outdates(a) || !from.mayChange(was)) {
			return true
		}
	}
	return false
}

// resolve ends what the alert has raised, or leaves it to its hold-down.
func (s *Server) resolve(ctx context.Context, now time.Time, from sender, a signal.Alert, raised []signal.Signal, mappings []signal.Mapping) (int, error) {
	n := 0
	for _, was := range raised {
		if was.Outdates(a) || !from.mayChange(was) {
			continue
		}
		held, gone := signal.Resolve(now, a, was, mappings)
		var err error
		if gone {
			err = s.alarms.signals.Clear(ctx, was.Target, was.Source)
		} else {
			err = s.alarms.signals.Publish(ctx, held)
		}
		if err != nil {
			return n, err
		}
		n++
		s.log.Info("load alarm resolved", "target", was.Target, "source", was.Source, "held_until", held.Until)
	}
	return n, nil
}

// mappingsOf are the policy's alarms in the form of package signal, which knows no policy.
func mappingsOf(alarms []policy.Alarm) []signal.Mapping {
	mappings := make([]signal.Mapping, 0, len(alarms))
	for _, a := range alarms {
		m := signal.Mapping{
			Name: a.Name, Match: a.Match, By: a.Of.By, Permille: a.Factor, For: a.For, HoldDown: a.HoldDown,
			Target: suspend.Target{Scope: suspend.Column, Name: a.Of.Name},
		}
		if a.Of.Section == policy.Levels {
			m.Target.Scope = suspend.Level
		}
		mappings = append(mappings, m)
	}
	return mappings
}
