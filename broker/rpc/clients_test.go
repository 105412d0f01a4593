package rpc

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/stats"
)

func newConnection() *connection { return &connection{ids: map[string]struct{}{}} }

func TestClientIsGoneWithItsLastConnection(t *testing.T) {
	c := newClients()
	now := time.Unix(1000, 0)
	a, b := newConnection(), newConnection()
	c.seen(a, "x", now)
	c.seen(a, "x", now) // a second call is not a second connection
	c.seen(a, "y", now)
	c.seen(b, "x", now)
	if gone := c.end(a); !slices.Equal(gone, []string{"y"}) {
		t.Fatalf("gone with the first connection: %v, want y alone", gone)
	}
	if gone := c.end(b); !slices.Equal(gone, []string{"x"}) {
		t.Fatalf("gone with the second connection: %v, want x", gone)
	}
	if len(c.byID) != 0 {
		t.Fatalf("%d clients are still known", len(c.byID))
	}
	// A call whose connection has ended meanwhile must not bring the client back:
	// nothing would ever take it away again.
	if _, ok := c.seen(b, "x", now); !ok || len(c.byID) != 0 {
		t.Fatal("a late call of an ended connection made its client known again")
	}
}

func TestTouchIsRationed(t *testing.T) {
	c := newClients()
	conn := newConnection()
	now := time.Unix(1000, 0)
	for _, step := range []struct {
		after time.Duration
		touch bool
	}{{0, true}, {time.Second, false}, {touchInterval - time.Second, true}, {0, false}} {
		now = now.Add(step.after)
		if touch, _ := c.seen(conn, "x", now); touch != step.touch {
			t.Fatalf("at %v: touch %v, want %v", now.Unix(), touch, step.touch)
		}
	}
}

func TestClientIDsOfAConnectionAreBounded(t *testing.T) {
	c := newClients()
	conn := newConnection()
	for i := range maxClientsPerConnection {
		if _, ok := c.seen(conn, fmt.Sprint(i), time.Now()); !ok {
			t.Fatalf("id %d was refused", i)
		}
	}
	if _, ok := c.seen(conn, "one more", time.Now()); ok {
		t.Fatal("one id too many was taken")
	}
	if _, ok := c.seen(conn, "0", time.Now()); !ok {
		t.Fatal("a known id was refused")
	}
}

// A notice to a client that is no lite consumer, or has not synchronised, crashes
// official Go clients.
func TestNoticesGoToSynchronisedLiteConsumersOnly(t *testing.T) {
	n := NewNotices()
	conn := newConnection()
	n.clients.seen(conn, "x", time.Now())
	commands := n.clients.openTelemetry("x")
	expect := func(when string, want int) {
		t.Helper()
		n.Unsubscribe("x", "group", "topic", "alice")
		if got := len(commands); got != want {
			t.Fatalf("%s: %d notices, want %d", when, got, want)
		}
	}
	expect("new client", 0)
	n.clients.setSynced("x")
	expect("synchronised, kind unknown", 0)
	n.clients.setLite("x", true)
	expect("lite and synchronised", 1)
	if got := (<-commands).GetNotifyUnsubscribeLiteCommand().GetLiteTopic(); got != "alice" {
		t.Fatalf("notice names %q", got)
	}
	for range maxQueuedCommands {
		n.Unsubscribe("x", "group", "topic", "bob")
	}
	expect("full queue", maxQueuedCommands) // does not block

	newer := n.clients.openTelemetry("x")
	n.clients.closeTelemetry("x", commands) // the old stream ends late
	n.Unsubscribe("x", "group", "topic", "carol")
	if len(newer) != 1 {
		t.Fatal("the newer stream was taken away by the end of the older")
	}
	n.Unsubscribe("nobody", "group", "topic", "carol") // no such client: nothing happens
}

func TestConnectionWatchReportsTheGone(t *testing.T) {
	var gone []string
	w := connectionWatch{clients: newClients(), gone: func(id string) { gone = append(gone, id) }}
	ctx := w.TagConn(context.Background(), &stats.ConnTagInfo{})
	w.HandleConn(ctx, &stats.ConnBegin{})
	w.clients.seen(ctx.Value(connectionKey{}).(*connection), "x", time.Now())
	if len(gone) != 0 {
		t.Fatal("gone before the end")
	}
	w.HandleConn(ctx, &stats.ConnEnd{})
	if !slices.Equal(gone, []string{"x"}) {
		t.Fatalf("gone: %v", gone)
	}
}
