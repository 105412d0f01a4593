package test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"

	"github.com/penstockmq/penstock/consumer/mq"
)

// officialPatience bounds the waits for an official client. After an error it asks
// for messages again in 20 s, and it sends again after its next heartbeat.
const officialPatience = 90 * time.Second

// consumed is what a handler of an official client saw of a message.
type consumed struct {
	lite, body string
	attempt    int32
	at         time.Time
}

func officialConfig(n *brokerNode, group string) *rocketmq.Config {
	return &rocketmq.Config{Endpoint: n.grpc, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func officialProducer(n *brokerNode) rocketmq.Producer {
	n.t.Helper()
	p, err := rocketmq.NewProducer(officialConfig(n, ""), rocketmq.WithTopics(topic))
	must(n.t, err)
	must(n.t, p.Start())
	n.t.Cleanup(func() { go func() { _ = p.GracefulStop() }() }) // it takes its time, and its server is gone
	return p
}

// officialConsumer is a lite push consumer and what it consumes.
func officialConsumer(n *brokerNode, group string, lease time.Duration, verdict func(consumed) rocketmq.ConsumerResult) (rocketmq.LitePushConsumer, <-chan consumed) {
	n.t.Helper()
	seen := make(chan consumed, 1000)
	c, err := rocketmq.NewLitePushConsumer(officialConfig(n, group), rocketmq.NewLitePushConsumerConfig(topic, lease),
		rocketmq.WithPushEnableFifoConsumeAccelerator(true),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: func(m *rocketmq.MessageView) rocketmq.ConsumerResult {
			c := consumed{m.GetLiteTopic(), string(m.GetBody()), m.GetDeliveryAttempt(), time.Now()}
			seen <- c
			return verdict(c)
		}}))
	must(n.t, err)
	must(n.t, c.Start())
	n.t.Cleanup(func() { go func() { _ = c.GracefulStop() }() })
	return c, seen
}

// officialSend tries until it is told OK: a client that was cut off does.
func officialSend(t *testing.T, p rocketmq.Producer, lite, body string) *rocketmq.SendReceipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), officialPatience)
	defer cancel()
	for {
		m := &rocketmq.Message{Topic: topic, Body: []byte(body)}
		m.SetLiteTopic(lite)
		receipts, err := p.Send(ctx, m)
		if err == nil {
			return receipts[0]
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal(errors.Join(err, ctx.Err()))
		}
	}
}

// next wants the next message to be body.
func next(t *testing.T, seen <-chan consumed, body string) consumed {
	t.Helper()
	select {
	case c := <-seen:
		if c.body != body {
			t.Fatalf("%s/%s came in attempt %d, want %s", c.lite, c.body, c.attempt, body)
		}
		return c
	case <-time.After(officialPatience):
		t.Fatalf("%s did not come", body)
		return consumed{}
	}
}

// TestOfficialClient runs the test of that name in a second process, without the
// race detector: the official client has data races of its own, above all when it
// connects again. The broker has the detector as ever.
func TestOfficialClient(t *testing.T) {
	t.Parallel()
	if os.Getenv(programSwitch) != "" {
		testOfficialClient(t)
		return
	}
	binary := filepath.Join(t.TempDir(), "official.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build of the second process: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^TestOfficialClient$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), programSwitch+"="+program)
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestOfficialClient ")) {
		t.Fatalf("second process: %v\n%s", err, out)
	}
}

// testOfficialClient is the life of unmodified official clients: what they can do,
// before and after the broker is killed under them.
func testOfficialClient(t *testing.T) {
	t.Helper()
	must(t, mq.SetUpOfficial(mq.OfficialProcess{LogDir: filepath.Join(filepath.Dir(program), "official"), LogLevel: "warn"}))
	config := filepath.Join(t.TempDir(), "penstock.yaml")
	must(t, os.WriteFile(config, []byte("groups:\n  - {name: exact, topic: "+topic+"}\n"), 0o600))
	n := startBroker(t, program, "--config", config, "--max-attempts", "2")

	const lease, hold = 3 * time.Second, 600 * time.Millisecond
	stuck := make(chan struct{})
	defer close(stuck)
	var paused sync.Map
	all, seen := officialConsumer(n, group, lease, func(c consumed) rocketmq.ConsumerResult {
		switch c.lite {
		case "paused": // once for each message
			if _, again := paused.LoadOrStore(c.body, true); !again {
				return rocketmq.NewConsumerResultSuspend(hold)
			}
		case "failing":
			return rocketmq.FAILURE
		case "stuck":
			if c.attempt == 1 {
				<-stuck
			}
		}
		return rocketmq.SUCCESS
	})
	must(t, all.SubscribeLite("*"))
	some, exactly := officialConsumer(n, "exact", time.Minute, func(consumed) rocketmq.ConsumerResult { return rocketmq.SUCCESS })
	must(t, some.SubscribeLite("named"))
	must(t, some.SubscribeLite("later"))
	p := officialProducer(n)

	var failed []string // message ids
	// story runs before and after the kill; the names of its messages begin with when.
	story := func(when string) {
		if r := officialSend(t, p, "other", when+" wildcard"); r.MessageID == "" || r.RecallHandle == "" {
			t.Errorf("receipt %+v", r)
		}
		next(t, seen, when+" wildcard")

		officialSend(t, p, "named", when+" exact")
		next(t, exactly, when+" exact") // and not the one before
		next(t, seen, when+" exact")    // each group has its own

		officialSend(t, p, "paused", when+" suspend")
		first := next(t, seen, when+" suspend")
		back := next(t, seen, when+" suspend")
		if d := back.at.Sub(first.at); d < hold || back.attempt != 1 {
			t.Errorf("back from a suspend of %v after %v in attempt %d, want 1", hold, d, back.attempt)
		}

		officialSend(t, p, "stuck", when+" redelivery")
		first = next(t, seen, when+" redelivery")
		back = next(t, seen, when+" redelivery")
		// The lease began before the handler.
		if d := back.at.Sub(first.at); d < lease-slack || back.attempt != 2 {
			t.Errorf("redelivered after %v of a lease of %v, in attempt %d", d, lease, back.attempt)
		}

		failed = append(failed, officialSend(t, p, "failing", when+" failure").MessageID)
		next(t, seen, when+" failure")
		next(t, seen, when+" failure")
	}
	story("before")
	watch(t, enough, func() bool { return len(n.deadLetters()) == 1 }, func() string { return "no dead letter" })
	run(t, "suspends", "set", "later", "--group", "exact", "--for", "1h", "--admin", n.admin)
	officialSend(t, p, "later", "kept")
	next(t, seen, "kept")

	n.kill()
	n.restart()

	story("after")
	watch(t, enough, func() bool { return len(n.deadLetters()) == 2 }, func() string { return "no second dead letter" })
	for i, d := range n.deadLetters() {
		if d.Bucket != "failing" || d.MessageID != failed[i] {
			t.Errorf("dead letter %d is %+v, want message %s", i, d, failed[i])
		}
	}
	select {
	case c := <-exactly:
		t.Fatalf("%s/%s came, out of a suspended bucket", c.lite, c.body)
	default:
	}
	run(t, "suspends", "lift", "later", "--group", "exact", "--admin", n.admin)
	next(t, exactly, "kept")
}
