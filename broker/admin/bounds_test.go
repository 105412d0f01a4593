package admin

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/signal"
)

func TestRecordingsAreBounded(t *testing.T) {
	t.Parallel()
	var r Recorder
	for i := range maxRecordings {
		if _, err := r.join("requests"); err != nil {
			t.Fatalf("recording %d: %v", i+1, err)
		}
	}
	if _, err := r.join("requests"); !errors.Is(err, broker.ErrBusy) {
		t.Errorf("recording %d: error %v, want %v", maxRecordings+1, err, broker.ErrBusy)
	}
}

func TestSlowRecordingLosesLinesAndCountsThem(t *testing.T) {
	t.Parallel()
	const more = 3
	var r Recorder
	to, err := r.join("requests")
	if err != nil {
		t.Fatal(err)
	}
	done := broker.Released{Topic: "requests", Cell: lite.Cell{User: "alice", Model: "m"}, Ended: time.Now(), Settled: true}
	for range recordBuffer + more {
		r.Released(done)
	}
	if len(to.lines) != recordBuffer || to.lost.Load() != more {
		t.Errorf("%d lines wait and %d are lost, want %d and %d", len(to.lines), to.lost.Load(), recordBuffer, more)
	}
}

func TestRememberedMessagesOfSNSAreBounded(t *testing.T) {
	t.Parallel()
	n := newSNSReceiver(SNSOptions{Client: http.DefaultClient})
	now := time.Now()
	for i := range maxSeen + 10 {
		n.remember(now, fmt.Sprint(i))
	}
	if len(n.seen) != maxSeen || !n.known(now, "0") {
		t.Errorf("%d messages are remembered, the first one: %v; want %d and true", len(n.seen), n.known(now, "0"), maxSeen)
	}
	later := now.Add(signal.ReplayMax + time.Hour)
	n.remember(later, "new")
	if len(n.seen) != 1 || !n.known(later, "new") {
		t.Errorf("%d messages are remembered after their time, the new one: %v; want 1 and true", len(n.seen), n.known(later, "new"))
	}
}
