//go:build !race

package rpc

import (
	"context"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	golang "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Tests with the unmodified official Go client, on a real port and in real time. The
// client has its switches in package variables and the environment, so one process
// can test plaintext or TLS, not both; TestOfficialClientOverTLS runs a second one.

// tlsSwitch tells the second process that it is the one for TLS.
const tlsSwitch = "PENSTOCK_TEST_OFFICIAL_TLS"

func TestMain(m *testing.M) {
	os.Exit(func() int {
		logs, err := os.MkdirTemp("", "penstock-rpc-")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(logs) }()
		for name, value := range map[string]string{golang.CLIENT_LOG_ROOT: logs, golang.CLIENT_LOG_FILENAME: filepath.Base(logs)} {
			if err := os.Setenv(name, value); err != nil {
				panic(err)
			}
		}
		golang.ResetLogger()
		golang.EnableSsl = os.Getenv(tlsSwitch) != ""
		// An official client takes seconds to start and to stop, and waits all the time.
		flag.Parse()
		if err := flag.Set("test.parallel", "16"); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// officialPolls makes the official consumer's stop short: it waits for its polls.
func officialPolls(c *config) { c.rpc.PollMax = time.Second }

func (f *fixture) officialConfig(group string) *golang.Config {
	return &golang.Config{Endpoint: f.address, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func (f *fixture) officialProducer() golang.Producer {
	f.t.Helper()
	p, err := golang.NewProducer(f.officialConfig(""), golang.WithTopics("requests"))
	must(f.t, err)
	must(f.t, p.Start())
	f.t.Cleanup(func() { _ = p.GracefulStop() }) // its server may have stopped
	return p
}

func officialSend(ctx context.Context, p golang.Producer, lite, body string) (*golang.SendReceipt, error) {
	m := &golang.Message{Topic: "requests", Body: []byte(body)}
	m.SetLiteTopic(lite)
	receipts, err := p.Send(ctx, m)
	if err != nil {
		return nil, err
	}
	return receipts[0], nil
}

// officialConsumer consumes with its own threads, and one chain for each bucket.
func (f *fixture) officialConsumer(invisible time.Duration, consume func(*golang.MessageView) golang.ConsumerResult) golang.LitePushConsumer {
	f.t.Helper()
	c, err := golang.NewLitePushConsumer(f.officialConfig("pool"), golang.NewLitePushConsumerConfig("requests", invisible),
		golang.WithPushEnableFifoConsumeAccelerator(true),
		golang.WithPushMessageListener(&golang.FuncMessageListener{Consume: consume}))
	must(f.t, err)
	must(f.t, c.Start())
	f.t.Cleanup(func() { _ = c.GracefulStop() })
	return c
}

// consumed is what a handler saw of a message.
type consumed struct {
	lite, body string
	attempt    int32
	at         time.Time
}

func collector(verdict func(consumed) golang.ConsumerResult) (<-chan consumed, func(*golang.MessageView) golang.ConsumerResult) {
	seen := make(chan consumed, 1000)
	return seen, func(m *golang.MessageView) golang.ConsumerResult {
		c := consumed{m.GetLiteTopic(), string(m.GetBody()), m.GetDeliveryAttempt(), time.Now()}
		seen <- c
		return verdict(c)
	}
}

func success(consumed) golang.ConsumerResult { return golang.SUCCESS }

func next(t *testing.T, seen <-chan consumed) consumed {
	t.Helper()
	select {
	case c := <-seen:
		return c
	case <-time.After(patience):
		t.Fatal("no message came")
		return consumed{}
	}
}

func TestOfficialClientWildcard(t *testing.T) {
	t.Parallel()
	f := startLoopback(t, officialPolls)
	seen, consume := collector(success)
	must(t, f.officialConsumer(time.Minute, consume).SubscribeLite("*"))
	p := f.officialProducer()
	const buckets, each = 20, 5
	for i := range buckets * each {
		receipt, err := officialSend(t.Context(), p, "user-"+strconv.Itoa(i%buckets), strconv.Itoa(i/buckets))
		must(t, err)
		if receipt.Offset != int64(i/buckets) || receipt.RecallHandle == "" {
			t.Fatalf("receipt %+v of message %d", receipt, i)
		}
	}
	got := map[string]string{}
	for range buckets * each {
		c := next(t, seen)
		if c.attempt != 1 {
			t.Errorf("%s/%s in attempt %d", c.lite, c.body, c.attempt)
		}
		got[c.lite] += c.body
	}
	for lite, bodies := range got {
		if bodies != "01234" {
			t.Errorf("%s: %s, want in order and once", lite, bodies)
		}
	}
	if len(got) != buckets {
		t.Errorf("messages of %d buckets, want %d", len(got), buckets)
	}
}

func TestOfficialClientExactNames(t *testing.T) {
	t.Parallel()
	f := startLoopback(t, officialPolls, exact)
	seen, consume := collector(success)
	c := f.officialConsumer(time.Minute, consume)
	must(t, c.SubscribeLite("a"))
	must(t, c.SubscribeLite("b"))
	if err := c.SubscribeLite("not/a/name"); err == nil || !strings.Contains(err.Error(), "ILLEGAL_LITE_TOPIC") {
		t.Errorf("subscribe to an illegal name: %v", err)
	}
	p := f.officialProducer()
	for _, lite := range []string{"c", "a", "b"} {
		_, err := officialSend(t.Context(), p, lite, lite)
		must(t, err)
	}
	got := []string{next(t, seen).lite, next(t, seen).lite}
	slices.Sort(got)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("messages of %v", got)
	}
	must(t, c.UnSubscribeLite("a"))
	must(t, c.SubscribeLite("c"))
	if got := next(t, seen); got.lite != "c" {
		t.Errorf("a message of %s, want c's that waited", got.lite)
	}
	for _, lite := range []string{"a", "c"} {
		_, err := officialSend(t.Context(), p, lite, "after")
		must(t, err)
	}
	if got := next(t, seen); got.lite != "c" || got.body != "after" {
		t.Errorf("%s/%s, want the later message of c", got.lite, got.body)
	}
	_, err := officialSend(t.Context(), p, "*", "body")
	if err == nil || !strings.Contains(err.Error(), "ILLEGAL_LITE_TOPIC") {
		t.Errorf("send to *: %v", err)
	}
}

func TestOfficialClientSuspend(t *testing.T) {
	t.Parallel()
	f := startLoopback(t, officialPolls)
	var once sync.Once
	const hold = 400 * time.Millisecond
	seen, consume := collector(func(c consumed) golang.ConsumerResult {
		result := golang.SUCCESS
		if c.lite == "slow" {
			once.Do(func() { result = golang.NewConsumerResultSuspend(hold) })
		}
		return result
	})
	must(t, f.officialConsumer(time.Minute, consume).SubscribeLite("*"))
	p := f.officialProducer()
	for _, m := range []string{"1", "2"} {
		_, err := officialSend(t.Context(), p, "slow", m)
		must(t, err)
	}
	first := next(t, seen)
	_, err := officialSend(t.Context(), p, "quick", "3")
	must(t, err)
	var order []string
	var back consumed
	for range 3 {
		c := next(t, seen)
		order = append(order, c.body)
		if c.body == "1" {
			back = c
		}
	}
	if !slices.Equal(order, []string{"3", "1", "2"}) {
		t.Errorf("after the suspend came %v, want the other bucket, then the held one in order", order)
	}
	if back.attempt != 1 {
		t.Errorf("attempt %d after a suspend, want 1", back.attempt)
	}
	if d := back.at.Sub(first.at); d < hold {
		t.Errorf("back after %v, held for %v", d, hold)
	}
}

// A handler that fails: the client tries again by itself, then gives the message
// to the dead letters. The bucket goes on with the next.
func TestOfficialClientFailure(t *testing.T) {
	t.Parallel()
	f := startLoopback(t, officialPolls, func(c *config) { c.group.MaxAttempts = 2 })
	seen, consume := collector(func(c consumed) golang.ConsumerResult {
		if c.body == "bad" {
			return golang.FAILURE
		}
		return golang.SUCCESS
	})
	must(t, f.officialConsumer(time.Minute, consume).SubscribeLite("*"))
	p := f.officialProducer()
	for _, m := range []string{"bad", "good"} {
		_, err := officialSend(t.Context(), p, "alice", m)
		must(t, err)
	}
	for _, want := range []string{"bad", "bad", "good"} {
		if c := next(t, seen); c.body != want {
			t.Fatalf("came %q, want %q", c.body, want)
		}
	}
	dead, err := f.broker.DeadLetters(t.Context(), "pool", 0, 10)
	must(t, err)
	if len(dead) != 1 || string(dead[0].Message.Body) != "bad" {
		t.Fatalf("dead letters %+v", dead)
	}
}

// A handler that never returns: its lease ends, and the message goes to another
// consumer, counted.
func TestOfficialClientRedelivery(t *testing.T) {
	t.Parallel()
	f := startLoopback(t, officialPolls)
	stuck := make(chan struct{})
	defer close(stuck)
	seen, consume := collector(func(c consumed) golang.ConsumerResult {
		if c.attempt == 1 {
			<-stuck
		}
		return golang.SUCCESS
	})
	must(t, f.officialConsumer(time.Second, consume).SubscribeLite("*"))
	_, err := officialSend(t.Context(), f.officialProducer(), "alice", "id")
	must(t, err)
	first, second := next(t, seen), next(t, seen)
	if first.attempt != 1 || second.attempt != 2 {
		t.Errorf("attempts %d and %d", first.attempt, second.attempt)
	}
	// The lease was granted before the handler saw the message.
	if d := second.at.Sub(first.at); d < 900*time.Millisecond {
		t.Errorf("redelivered after %v, the lease is a second", d)
	}
}

// Official clients go on when the broker comes back with what it had.
func TestOfficialClientOverARestart(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem()
	f := startLoopback(t, officialPolls, func(c *config) { c.broker.FS = disk })
	seen, consume := collector(success)
	must(t, f.officialConsumer(time.Minute, consume).SubscribeLite("*"))
	p := f.officialProducer()
	_, err := officialSend(t.Context(), p, "alice", "before")
	must(t, err)
	if c := next(t, seen); c.body != "before" {
		t.Fatalf("came %q", c.body)
	}

	f.stop()
	must(t, f.broker.Close())
	ln, err := net.Listen("tcp", f.address)
	must(t, err)
	startOn(t, ln, officialPolls, func(c *config) {
		c.broker.FS = disk
		c.topic.Name = "" // it is there already
	})

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, err := officialSend(ctx, p, "alice", "after")
		if err == nil {
			break
		}
		must(t, ctx.Err())
	}
	// A send that failed may have been stored all the same; what counts is that one arrives.
	if c := next(t, seen); c.body != "after" {
		t.Fatalf("came %q", c.body)
	}
}

// The rest of the official client's tests once more, with TLS.
func TestOfficialClientOverTLS(t *testing.T) {
	t.Parallel()
	if os.Getenv(tlsSwitch) != "" {
		t.Skip("this is the process for TLS")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOfficialClientWildcard$", "-test.v")
	cmd.Env = append(os.Environ(), tlsSwitch+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestOfficialClientWildcard") {
		t.Fatalf("with TLS: %v\n%s", err, out)
	}
}
