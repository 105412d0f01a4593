package broker_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/broker/store"
)

// Ids of parent topics are never used again, and there are 65,535 of them.
func TestIdsOfParentTopicsRunOutWithAClearError(t *testing.T) {
	fs := vfs.NewMem()
	st, err := store.Open(store.Options{Dir: "data", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	batch := st.NewBatch()
	batch.PutNextTopicID(65535)
	if err := errors.Join(st.Apply(batch, store.Durable), batch.Close(), st.Close()); err != nil {
		t.Fatal(err)
	}
	o := broker.Options{Dir: "data", FS: fs}
	b, err := broker.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.CreateTopic(t.Context(), broker.TopicConfig{Name: "last"}); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteTopic(t.Context(), "last"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also after a restart
		err := b.CreateTopic(t.Context(), broker.TopicConfig{Name: "next"})
		if !errors.Is(err, broker.ErrInvalidArgument) || !strings.Contains(err.Error(), "65535 parent topics were created") {
			t.Errorf("got %v, want an error that says that the ids are used up", err)
		}
		closeBroker(t, b)
		if b, err = broker.Open(o); err != nil {
			t.Fatal(err)
		}
	}
	closeBroker(t, b)
}

// A gateway whose clock was ten minutes behind had all its requests dropped as expired,
// without an error.
func TestADeadlineThatHasPassedIsAnsweredAtSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, options(vfs.NewMem()))
		with := func(deadline time.Time) error {
			m := broker.Message{Lite: "a", ID: "id", Body: []byte("x"), Properties: map[string]string{
				lite.PropertyDeadline: strconv.FormatInt(deadline.UnixMilli(), 10),
			}}
			_, err := b.Send(t.Context(), topic, []broker.Message{m})
			return err
		}
		err := with(time.Now().Add(-5 * time.Minute))
		if !errors.Is(err, broker.ErrDeadlinePassed) || !strings.Contains(err.Error(), "5m0s") || !strings.Contains(err.Error(), "clock") {
			t.Errorf("got %v, want a refusal that says by how much and names the clocks", err)
		}
		if n := b.Metrics().LateSends.Load(); n != 1 {
			t.Errorf("counted %d times, want 1", n)
		}
		if err := with(time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
		if n := stats(t, b).Messages; n != 1 {
			t.Errorf("%d messages are kept, want 1", n)
		}
		closeBroker(t, b)
	})
}
