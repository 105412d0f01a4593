package broker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
)

// TestExplain follows a bucket through its states.
func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(vfs.NewMem())
		o.Policy = document(t, `rows: [{user: alice, window: 2/1m}]`)
		b := open(t, o)
		name := cell(t, "alice", "m")
		sendRequests(t, b, name, 0, 4)
		explain := func(offset int64) broker.Explanation {
			t.Helper()
			x, err := b.Explain(t.Context(), topic, "", name, offset)
			if err != nil {
				t.Fatal(err)
			}
			if x.Topic != topic || x.Group != group || x.Bucket != name || x.Cell.User != "alice" || x.Level != 1 {
				t.Errorf("explained is %+v", x)
			}
			return x
		}
		if x := explain(broker.NextMessage); x.State != "ready" || x.Offset != 0 || x.RequestID != name+"-0" || x.Position != 0 || len(x.Lines) == 0 {
			t.Errorf("the next: %+v", x)
		}
		if x := explain(3); x.State != "queued" || x.Position != 3 || x.RequestID != name+"-3" {
			t.Errorf("the last: %+v", x)
		}
		d := one(t, b, 0)
		if x := explain(0); x.State != "out" || !x.Until.Equal(d.InvisibleUntil.Round(0)) {
			t.Errorf("out: %+v", x)
		}
		if x := explain(1); x.State != "in_flight_full" {
			t.Errorf("behind one that is out: %+v", x)
		}
		ack(t, b, d)
		ack(t, b, one(t, b, 0))
		row := suspend.Target{Scope: suspend.Row, Name: "alice"}
		x := explain(2)
		if x.State != "limited" || x.Gate != row || x.Limit != "window" || !x.Until.After(time.Now()) || x.Until.After(time.Now().Add(time.Minute)) || x.Opens == "" {
			t.Errorf("limited: %+v", x)
		}
		if _, err := b.HoldFor(t.Context(), topic, group, row, time.Hour, "op", "why"); err != nil {
			t.Fatal(err)
		}
		if x := explain(2); x.State != "held" || x.Hold.By != "op" || x.Hold.Target != row || x.Limit != "" {
			t.Errorf("held: %+v", x)
		}
		if _, err := b.Explain(t.Context(), topic, group, name, 0); !errors.Is(err, broker.ErrNotQueued) {
			t.Errorf("of one that is settled: %v", err)
		}
		closeBroker(t, b)
	})
}

func TestExplainErrors(t *testing.T) {
	o := options(vfs.NewMem())
	o.Topics = append(o.Topics, broker.TopicConfig{Name: "other"})
	o.Groups = append(o.Groups, broker.GroupConfig{Name: "elsewhere", Topic: "other"})
	b := open(t, o)
	receipts := send(t, b, "x", "a", "done")
	handle := receipts[0].RecallHandle
	for _, d := range poll(t, b, 2, 0) {
		if d.Lite == "done" {
			ack(t, b, d)
		}
	}
	for _, c := range []struct {
		topic, group, name string
		offset             int64
		want               error
	}{
		{"nothing", group, "a", -1, broker.ErrTopicNotFound},
		{topic, "nobody", "a", -1, broker.ErrGroupNotFound},
		{topic, "elsewhere", "a", -1, broker.ErrGroupBound},
		{topic, group, "missing", -1, broker.ErrBucketNotFound},
		{topic, group, "a/b", -1, lite.ErrName},
		{topic, group, "a", -2, broker.ErrInvalidArgument},
		{topic, group, "a", 7, broker.ErrNotQueued},
		{topic, group, "done", 0, broker.ErrNotQueued},
	} {
		if _, err := b.Explain(t.Context(), c.topic, c.group, c.name, c.offset); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if x, err := b.Explain(t.Context(), topic, "", "done", broker.NextMessage); err != nil || x.State != broker.StateEmpty || x.Offset != broker.NextMessage {
		t.Errorf("of an empty bucket: %+v, %v", x, err)
	}
	if x, err := b.ExplainHandle(t.Context(), topic, group, handle); err != nil || x.State != "out" || x.Bucket != "a" {
		t.Errorf("by its handle: %+v, %v", x, err)
	}
	if _, err := b.ExplainHandle(t.Context(), topic, group, receipts[1].RecallHandle); !errors.Is(err, broker.ErrNotQueued) {
		t.Errorf("by the handle of a settled one: %v", err)
	}
	if _, err := b.ExplainHandle(t.Context(), "other", "elsewhere", handle); !errors.Is(err, broker.ErrInvalidHandle) {
		t.Errorf("by the handle of another topic: %v", err)
	}
	if _, err := b.ExplainHandle(t.Context(), topic, group, "x"); !errors.Is(err, broker.ErrInvalidHandle) {
		t.Errorf("by no handle: %v", err)
	}
}

// TestFindRequest looks for requests in memory and, with no room there, in the store,
// which takes more than a page.
func TestFindRequest(t *testing.T) {
	for _, cache := range []int64{0, 1} {
		o := options(vfs.NewMem())
		o.TailCacheBytes = cache
		b := open(t, o)
		for _, name := range []string{"a", "b", "c"} {
			for first := 0; first < 1500; first += 500 {
				sendRequests(t, b, name, first, 500)
			}
		}
		for range 10 {
			ack(t, b, poll(t, b, 32, 0)...)
		}
		for _, c := range []struct {
			id, name string
			offset   int64
			found    bool
		}{
			{"a-10", "a", 10, true},
			{"b-1499", "b", 1499, true},
			{"c-1024", "c", 1024, true},
			{"a-9", "", 0, false}, // settled
			{"a-1", "", 0, false}, // a part of other ids
			{"d-0", "", 0, false},
		} {
			name, offset, found, err := b.FindRequest(t.Context(), topic, c.id)
			if err != nil || found != c.found || found && (name != c.name || offset != c.offset) {
				t.Errorf("cache %d, %s: %s %d %v, %v", cache, c.id, name, offset, found, err)
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, _, err := b.FindRequest(gone, topic, "d-0"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		if _, _, _, err := b.FindRequest(t.Context(), topic, ""); !errors.Is(err, broker.ErrInvalidArgument) {
			t.Errorf("no id: %v", err)
		}
		if _, _, _, err := b.FindRequest(t.Context(), "nothing", "x"); !errors.Is(err, broker.ErrTopicNotFound) {
			t.Errorf("no topic: %v", err)
		}
	}
}

// TestExplainOfAnEmptyBucket: what is used of the limits shows after the last message, too.
func TestExplainOfAnEmptyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(vfs.NewMem())
		o.Policy = document(t, `limits: [{user: alice, rate: 1/1h}]`)
		b := open(t, o)
		defer closeBroker(t, b)
		send(t, b, "x", cell(t, "alice", "m"))
		ack(t, b, one(t, b, 0))
		column := suspend.Target{Scope: suspend.Column, Name: "m"}
		if err := b.SetHold(t.Context(), group, suspend.Hold{Target: column, Until: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		x, err := b.Explain(t.Context(), topic, group, cell(t, "alice", "m"), broker.NextMessage)
		if err != nil {
			t.Fatal(err)
		}
		if x.State != broker.StateEmpty || x.Hold.Target != column || len(x.Lines) != 1 || x.Lines[0].Open {
			t.Errorf("explained as %+v", x)
		}
	})
}
