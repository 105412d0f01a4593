package signal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend"
)

func golden(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParseAlertmanager(t *testing.T) {
	alerts, err := ParseAlertmanager([]byte(golden(t, "alertmanager.json")))
	if err != nil || len(alerts) != 2 {
		t.Fatalf("%+v, %v", alerts, err)
	}
	firing, resolved := alerts[0], alerts[1]
	if firing.Resolved || firing.Fingerprint != "c2a9e5a1f2b3c4d5" || firing.Labels["model"] != "m1" ||
		firing.Summary != "m1 has 40 requests waiting" || !firing.Starts.Equal(noon) || !firing.Ends.IsZero() {
		t.Errorf("firing: %+v", firing)
	}
	if !resolved.Resolved || !resolved.Ends.Equal(noon.Add(5*time.Minute)) || resolved.Labels["model"] != "m2" {
		t.Errorf("resolved: %+v", resolved)
	}
}

func TestParseAlertmanagerRefuses(t *testing.T) {
	one := func(alert string) string { return `{"version":"4","alerts":[` + alert + `]}` }
	labels := make([]string, 0, MaxLabels+1)
	for i := range MaxLabels + 1 {
		labels = append(labels, fmt.Sprintf(`"l%d":"x"`, i))
	}
	for want, body := range map[string]string{
		"body: ":                 `{`,
		"body: want an object":   `null`,
		"body: has":              strings.Repeat(" ", MaxAlertBytes) + "{}",
		"version: is \"3\"":      `{"version":"3","alerts":[]}`,
		"version: is \"\"":       `{}`,
		"alerts: is missing":     `{"version":"4"}`,
		"alerts: is a string":    `{"version":"4","alerts":"x"}`,
		"alerts[0].status":       one(`{"status":"","labels":{"a":"b"}}`),
		"alerts[1].status":       one(`{"status":"firing","labels":{"a":"b"}},{"status":"off","labels":{"a":"b"}}`),
		"alerts[0].labels":       one(`{"status":"firing"}`),
		"has 101, want 1":        one(`{"status":"firing","labels":{` + strings.Join(labels, ",") + `}}`),
		"alerts[0].fingerprint:": one(`{"status":"firing","labels":{"a":"b"},"fingerprint":"` + strings.Repeat("f", 65) + `"}`),
		"alerts: has 1001":       one(strings.Repeat(`{},`, MaxAlerts) + `{}`),
	} {
		if _, err := ParseAlertmanager([]byte(body)); !errors.Is(err, ErrAlert) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestFingerprintWithoutOne(t *testing.T) {
	parse := func(labels string) string {
		alerts, err := ParseAlertmanager([]byte(`{"version":"4","alerts":[{"status":"firing","labels":` + labels + `}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return alerts[0].Fingerprint
	}
	a := parse(`{"x":"1","y":"2"}`)
	if a == "" || a != parse(`{"y":"2","x":"1"}`) || a == parse(`{"x":"1","y":"3"}`) || a == parse(`{"x":"1\",y=\"2"}`) {
		t.Error("fingerprints do not tell alerts apart")
	}
}

func FuzzParseAlertmanager(f *testing.F) {
	f.Add([]byte(`{"version":"4","alerts":[{"status":"firing","labels":{"a":"b"}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		alerts, err := ParseAlertmanager(body)
		for _, a := range alerts {
			if err != nil || a.Fingerprint == "" || len(a.Labels) == 0 {
				t.Errorf("%+v, %v", a, err)
			}
		}
	})
}

var busy = Mapping{
	Name: "busy", Match: map[string]string{"alertname": "Busy"}, By: "model",
	Permille: 300, For: 10 * time.Minute, HoldDown: 30 * time.Second,
}

func busyAlert(labels ...string) Alert {
	a := Alert{Fingerprint: "f1", Labels: map[string]string{"alertname": "Busy", "model": "m1"}, Summary: "too much", Starts: noon}
	for i := 0; i < len(labels); i += 2 {
		a.Labels[labels[i]] = labels[i+1]
	}
	return a
}

func TestMappingRaises(t *testing.T) {
	if !busy.Matches(busyAlert()) || busy.Matches(busyAlert("alertname", "Other")) || busy.Matches(Alert{}) {
		t.Error("matches the wrong alerts")
	}
	s, err := busy.Raise(noon, busyAlert())
	want := Signal{
		Target: m1, Source: "busy/f1", Permille: 300, At: noon, Until: noon.Add(10 * time.Minute), Reason: "Busy: too much",
	}
	if err != nil || s != want {
		t.Errorf("%+v, %v", s, err)
	}
	if mapping, fingerprint, ok := s.Origin(); mapping != "busy" || fingerprint != "f1" || !ok {
		t.Errorf("origin %q %q %v", mapping, fingerprint, ok)
	}
	if _, _, ok := poll("busy/f1", 0, 0, noon, time.Minute).Origin(); ok {
		t.Error("a poll was raised by an alert")
	}
	level := busy
	level.By, level.Target = "", l2
	if s, err := level.Raise(noon, busyAlert("model", "")); err != nil || s.Target != l2 {
		t.Errorf("level: %+v, %v", s, err)
	}
	for name, a := range map[string]Alert{
		"empty":    busyAlert("model", ""),
		"wildcard": busyAlert("model", "*"),
		"missing":  {Fingerprint: "f1", Labels: map[string]string{"alertname": "Busy"}},
	} {
		if _, err := busy.Raise(noon, a); !errors.Is(err, ErrTarget) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestResolveHoldsDown(t *testing.T) {
	raised, err := busy.Raise(noon, busyAlert())
	if err != nil {
		t.Fatal(err)
	}
	a := busyAlert()
	a.Resolved, a.Ends = true, noon.Add(time.Minute)
	mappings := []Mapping{{Name: "bus", HoldDown: time.Hour}, busy}
	s, gone := Resolve(noon.Add(62*time.Second), a, raised, mappings)
	if gone || s.Permille != 300 || !s.Until.Equal(noon.Add(90*time.Second)) || s.Source != raised.Source {
		t.Errorf("held down: %+v, gone %v", s, gone)
	}
	// Posted again, it holds no longer.
	if again, _ := Resolve(noon.Add(80*time.Second), a, s, mappings); !again.Until.Equal(s.Until) {
		t.Errorf("again: until %v, want %v", again.Until, s.Until)
	}
	if _, gone := Resolve(noon.Add(90*time.Second), a, s, mappings); !gone {
		t.Error("still there after the hold-down")
	}
	if _, gone := Resolve(noon.Add(61*time.Second), a, raised, nil); !gone {
		t.Error("a mapping that is gone holds down")
	}
	a.Ends = noon.Add(time.Hour) // a clock that is ahead
	if s, _ := Resolve(noon, a, raised, mappings); !s.Until.Equal(noon.Add(30 * time.Second)) {
		t.Errorf("ahead: until %v", s.Until)
	}
}

// TestFlappingAlarmDoesNotFlap: an alarm at its threshold fires and resolves every ten seconds, and the factor stays.
func TestFlappingAlarmDoesNotFlap(t *testing.T) {
	var b Board
	for i := range 20 {
		now := noon.Add(time.Duration(i) * 10 * time.Second)
		s, err := busy.Raise(now, busyAlert())
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			a := busyAlert()
			a.Resolved, a.Ends = true, now
			s, _ = Resolve(now, a, s, []Mapping{busy})
		}
		b.Put(now, s)
		for d := range 10 {
			if got, _ := b.Factor(now.Add(time.Duration(d)*time.Second), m1); got != 300 {
				t.Fatalf("the factor is %d after %d changes", got, i)
			}
		}
	}
}

func TestCloudWatch(t *testing.T) {
	sent := noon.Add(3 * time.Second)
	a, known, err := ParseCloudWatch(golden(t, "cloudwatch.json"), sent)
	if err != nil || !known || a.Resolved || !a.Changed.Equal(noon.Add(123*time.Millisecond)) || a.Fingerprint == "" {
		t.Fatalf("%+v, %v, %v", a, known, err)
	}
	want := "map[LoadBalancer:app/x account:123456789012 alertname:m1 waits metric:TargetResponseTime model:m1 namespace:AWS/ApplicationELB region:US East (N. Virginia)]"
	if got := fmt.Sprint(a.Labels); got != want {
		t.Errorf("labels %s\n  want %s", got, want)
	}
	ok, known, err := ParseCloudWatch(strings.Replace(golden(t, "cloudwatch.json"), `"ALARM"`, `"OK"`, 1), sent)
	if err != nil || !known || !ok.Resolved || ok.Fingerprint != a.Fingerprint || !ok.Ends.Equal(a.Changed) {
		t.Errorf("ok: %+v, %v, %v", ok, known, err)
	}
	if _, known, err := ParseCloudWatch(strings.Replace(golden(t, "cloudwatch.json"), `"ALARM"`, `"INSUFFICIENT_DATA"`, 1), sent); err != nil || known {
		t.Errorf("insufficient data: %v, %v", known, err)
	}
	for want, text := range map[string]string{
		"Message: ":                  `hello`,
		"Message.AlarmName":          `{}`,
		"Message.NewStateValue":      `{"AlarmName":"a","NewStateValue":"alarm"}`,
		"Message.Trigger.Dimensions": `{"AlarmName":"a","NewStateValue":"OK","Trigger":{"Dimensions":"x"}}`,
	} {
		if _, _, err := ParseCloudWatch(text, sent); !errors.Is(err, ErrAlert) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestOvertakenMessage: SNS does not keep the order, so an ALARM may come after the OK that followed it.
func TestOvertakenMessage(t *testing.T) {
	a := busyAlert()
	a.Changed = noon
	s, err := busy.Raise(noon.Add(time.Second), a)
	if err != nil || !s.At.Equal(noon) || !s.Until.Equal(noon.Add(time.Second+busy.For)) {
		t.Fatalf("%+v, %v", s, err)
	}
	a.Changed = noon.Add(-time.Second)
	if !s.Outdates(a) {
		t.Error("an older message is taken for news")
	}
	a.Changed = noon.Add(time.Second)
	if s.Outdates(a) || s.Outdates(busyAlert()) {
		t.Error("news are taken for old")
	}
}

func TestScopeOfMapping(t *testing.T) {
	wide := busy
	wide.By, wide.Target = "", suspend.Target{Scope: suspend.All}
	if _, err := wide.Raise(noon, busyAlert()); !errors.Is(err, ErrTarget) {
		t.Errorf("everything was scaled: %v", err)
	}
}
