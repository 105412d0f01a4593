package signal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Bounds of what monitoring may post.
const (
	MaxAlertBytes = 1 << 20
	MaxAlerts     = 1000 // in one post
	MaxLabels     = 100  // of one alert
	// MaxFingerprintBytes leaves room for the name of a mapping in a source.
	MaxFingerprintBytes = 64
)

// ErrAlert is wrapped by every error about a post that is not in the format it claims.
var ErrAlert = errors.New("invalid alert")

// Alert is one alert of somebody's monitoring, firing or resolved.
type Alert struct {
	Fingerprint string // the same for the same alert each time
	Resolved    bool
	Labels      map[string]string
	Summary     string // for people
	Starts      time.Time
	Ends        time.Time // when it was resolved; zero while it fires
	// Changed is when it came into this state, where posts may overtake each other; zero: they come in order.
	Changed time.Time
}

// webhook is the body of Alertmanager's webhook receiver, version 4; see
// https://prometheus.io/docs/alerting/latest/configuration/#webhook_config. Fields that are not needed are left out, and
// unknown ones allowed: Alertmanager adds some from time to time without a new version.
type webhook struct {
	Version string `json:"version"`
	Alerts  []struct {
		Status      string            `json:"status"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
		StartsAt    time.Time         `json:"startsAt"`
		EndsAt      time.Time         `json:"endsAt"`
		Fingerprint string            `json:"fingerprint"`
	} `json:"alerts"`
}

// ParseAlertmanager reads the body of Alertmanager's webhook: a group of alerts, each firing or resolved by itself. The
// status of the group is not looked at. Errors wrap ErrAlert and name the field.
func ParseAlertmanager(body []byte) ([]Alert, error) {
	var w webhook
	if err := decode(body, &w); err != nil {
		return nil, err
	}
	switch {
	case w.Version != "4":
		return nil, fmt.Errorf("%w: version: is %q, want \"4\"", ErrAlert, w.Version)
	case w.Alerts == nil:
		return nil, fmt.Errorf("%w: alerts: is missing", ErrAlert)
	case len(w.Alerts) > MaxAlerts:
		return nil, fmt.Errorf("%w: alerts: has %d, the limit is %d (max_alerts of the receiver)", ErrAlert, len(w.Alerts), MaxAlerts)
	}
	alerts := make([]Alert, 0, len(w.Alerts))
	for i, a := range w.Alerts {
		field := fmt.Sprintf("alerts[%d]", i)
		switch {
		case a.Status != "firing" && a.Status != "resolved":
			return nil, fmt.Errorf("%w: %s.status: is %q, want firing or resolved", ErrAlert, field, a.Status)
		case len(a.Labels) == 0 || len(a.Labels) > MaxLabels:
			return nil, fmt.Errorf("%w: %s.labels: has %d, want 1 to %d", ErrAlert, field, len(a.Labels), MaxLabels)
		case len(a.Fingerprint) > MaxFingerprintBytes:
			return nil, fmt.Errorf("%w: %s.fingerprint: has %d bytes, the limit is %d", ErrAlert, field, len(a.Fingerprint), MaxFingerprintBytes)
		}
		read := Alert{
			Fingerprint: a.Fingerprint, Resolved: a.Status == "resolved", Labels: a.Labels,
			Summary: summary(a.Annotations), Starts: a.StartsAt,
		}
		if read.Fingerprint == "" { // before Alertmanager 0.19
			read.Fingerprint = fingerprint(a.Labels)
		}
		if read.Resolved {
			read.Ends = a.EndsAt
		}
		alerts = append(alerts, read)
	}
	return alerts, nil
}

// decode reads one JSON object into v.
func decode(body []byte, v any) error {
	if len(body) > MaxAlertBytes {
		return fmt.Errorf("%w: body: has %d bytes, the limit is %d", ErrAlert, len(body), MaxAlertBytes)
	}
	err := json.Unmarshal(body, v)
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && t.Field != "" {
		return fmt.Errorf("%w: %s: is a %s", ErrAlert, t.Field, t.Value)
	}
	if err != nil {
		return fmt.Errorf("%w: body: %w", ErrAlert, err)
	}
	if !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) {
		return fmt.Errorf("%w: body: want an object", ErrAlert) // null fits into everything
	}
	return nil
}

func summary(annotations map[string]string) string {
	for _, name := range []string{"summary", "description", "message"} {
		if text := annotations[name]; text != "" {
			return cut(text)
		}
	}
	return ""
}

// fingerprint is one of the labels, the same whatever their order.
func fingerprint(labels map[string]string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(h, "%q=%q,", name, labels[name]) // quoted: no two sets of labels are the same text
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
