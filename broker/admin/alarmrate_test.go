package admin

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/suspend/signal"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func address(i int) sender {
	return sender{name: fmt.Sprint(signal.SenderAddress, "10.0.", i/256, ".", i%256)}
}

func TestAlarmsHaveARateForEachSender(t *testing.T) {
	t.Parallel()
	r := &alarmRates{senders: map[string]*allowance{}}
	admit := func(now time.Time, from sender, n int) error { return r.admit(now, from, n) }
	token := sender{name: signal.SenderToken, proven: true}
	if err := admit(start, address(1), alarmBurst); err != nil {
		t.Fatal(err)
	}
	err := admit(start, address(1), 50)
	again, ok := errors.AsType[*retryError](err)
	if !errors.Is(err, errAlarmRate) || !ok || again.after != 500*time.Millisecond ||
		!strings.Contains(err.Error(), "address 10.0.0.1 may post 100 alerts in a second, and 2000 at once") {
		t.Errorf("50 more: error %v, want the bound, and half a second", err)
	}
	if err := admit(start.Add(499*time.Millisecond), address(1), 50); err == nil {
		t.Error("they are taken before the time that was told")
	}
	if err := admit(start.Add(500*time.Millisecond), address(1), 50); err != nil {
		t.Errorf("at the time that was told: %v", err)
	}
	later := start.Add(500 * time.Millisecond)
	for _, from := range []sender{address(2), token} {
		if err := admit(later, from, alarmBurst); err != nil {
			t.Errorf("another sender, %s: %v", from.name, err)
		}
	}
	// Many addresses together have a bound; the token does not share it.
	refused := 0
	for i := range 10 {
		if admit(later, address(10+i), alarmBurst) != nil {
			refused++
		}
	}
	if refused != 8 { // of the four bursts that they have together, nearly two were used
		t.Errorf("%d of 10 further addresses were refused, want 8", refused)
	}
	if err := admit(start.Add(21*time.Second), token, alarmBurst); err != nil {
		t.Errorf("the token while addresses flood: %v", err)
	}
	if r.count() == 0 {
		t.Error("refusals are not counted")
	}
}

func TestAlarmSendersAreBounded(t *testing.T) {
	t.Parallel()
	r := &alarmRates{senders: map[string]*allowance{}}
	for i := range 3 * maxAlarmSenders {
		_ = r.admit(start, address(i), 1)
	}
	if n := len(r.senders); n != maxAlarmSenders {
		t.Errorf("%d senders are remembered, want %d", n, maxAlarmSenders)
	}
	if err := r.admit(start.Add(time.Minute), address(9999), 1); err != nil {
		t.Error(err)
	}
	if n := len(r.senders); n != 1 {
		t.Errorf("%d senders are remembered after a pause, want the last one", n)
	}
}

func TestAddressOfASender(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"10.1.2.3:80":                "address 10.1.2.3",
		"[::ffff:10.1.2.3]:80":       "address 10.1.2.3",
		"[2001:db8:1:2:3:4:5:6]:80":  "address 2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:443": "address 2001:db8:1:2::/64",
		"[fe80::1%eth0]:80":          "address fe80::/64",
		"pipe":                       "address pipe",
	} {
		if got := addressOf(&http.Request{RemoteAddr: remote}); got.name != want || got.proven {
			t.Errorf("%s: %+v, want %s", remote, got, want)
		}
	}
}
