package forward

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// The sinks that the pool uses.
var (
	_ Sink     = (*reply.Writer)(nil)
	_ Sink     = (*reply.Collector)(nil)
	_ Producer = mq.Producer(nil)
)

type named string

func (n named) Forward(_ context.Context, _ Request, s Sink) Outcome {
	_ = s.Answer(200, nil, []byte(n), reply.Usage{})
	return Outcome{Kind: Done}
}

func TestRouter(t *testing.T) {
	routes := map[string]Downstream{"m": named("route")}
	with, without := NewRouter(routes, named("fallback")), NewRouter(routes, nil)
	for _, tt := range []struct {
		r     *Router
		model string
		want  string
		kind  Kind
	}{
		{with, "m", "route", Done}, {with, "x", "fallback", Done}, {without, "m", "route", Done}, {without, "x", CodeNoModel, Refused},
	} {
		var s sink
		o := tt.r.Forward(t.Context(), Request{Request: reply.Request{Model: tt.model}}, &s)
		if o.Kind != tt.kind || !strings.Contains(s.body, tt.want) {
			t.Errorf("%s: %+v, %q", tt.model, o, s.body)
		}
		if o.Kind == Refused && s.status != http.StatusNotFound {
			t.Errorf("%s: status %d", tt.model, s.status)
		}
	}
	if m := with.Models(); len(m) != 1 || m[0] != "m" {
		t.Errorf("models %v", m)
	}
}

func natsConn(t *testing.T) *nats.Conn {
	t.Helper()
	s, err := reply.StartServer(reply.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestNATS(t *testing.T) {
	nc := natsConn(t)
	answers := map[string]*nats.Msg{
		"ok":      {Data: []byte(`{"usage":{"prompt_tokens":2,"completion_tokens":3}}`), Header: nats.Header{"Content-Type": {"application/json"}}},
		"refused": {Header: nats.Header{"Nats-Service-Error-Code": {"422"}, "Nats-Service-Error": {"too long"}}},
		"words":   {Data: []byte("own words"), Header: nats.Header{"Nats-Service-Error-Code": {"400"}}},
		"busy":    {Header: nats.Header{"Nats-Service-Error-Code": {"503"}, "Retry-After": {"2"}}},
		"full":    {Header: nats.Header{"Nats-Service-Error-Code": {"429"}}},
		"crash":   {Header: nats.Header{"Nats-Service-Error-Code": {"500"}}},
		"odd":     {Header: nats.Header{"Nats-Service-Error-Code": {"oops"}}},
	}
	asked := make(chan *nats.Msg, 1)
	_, err := nc.Subscribe("model", func(m *nats.Msg) {
		asked <- m
		_ = m.RespondMsg(answers[m.Header.Get(headerModel)])
	})
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewNATS(nc, NATSOptions{Subject: "model"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		model  string
		kind   Kind
		status int
		body   string
		retry  bool
		after  time.Duration
	}{
		{"ok", Done, 200, "usage", false, 0},
		{"refused", Refused, 422, "too long", false, 0},
		{"words", Refused, 400, "own words", false, 0},
		{"busy", Busy, 503, "", false, 2 * time.Second},
		{"full", Failed, 429, "", true, 0},
		{"crash", Failed, 500, "", true, 0},
		{"odd", Failed, 502, "", true, 0},
	} {
		var s sink
		r := Request{Request: reply.Request{ID: "r", User: "u", Model: tt.model}, Body: []byte("b"), Attempt: 2}
		o := d.Forward(t.Context(), r, &s)
		m := <-asked
		if o.Kind != tt.kind || o.Status != tt.status || o.Retry != tt.retry || o.After != tt.after || !strings.Contains(s.body, tt.body) {
			t.Errorf("%s: %+v, %q", tt.model, o, s.body)
		}
		if (o.Kind == Done || o.Kind == Refused) == s.untouched() {
			t.Errorf("%s: the sink has %+v", tt.model, s)
		}
		if tt.kind == Done && o.Usage != (reply.Usage{Input: 2, Output: 3}) {
			t.Errorf("usage %+v", o.Usage)
		}
		if string(m.Data) != "b" || m.Header.Get(headerUser) != "u" || m.Header.Get(headerAttempt) != "2" {
			t.Errorf("%s: the service saw %+v", tt.model, m)
		}
	}
}

func TestNATSWithoutAnswer(t *testing.T) {
	nc := natsConn(t)
	d, err := NewNATS(nc, NATSOptions{Subject: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	if o := d.Forward(t.Context(), Request{}, &sink{}); o.Kind != Failed || !o.Retry || o.Failure.Code != CodeUnreachable {
		t.Errorf("no service: %+v", o)
	}
	if _, err := nc.SubscribeSync("silent"); err != nil {
		t.Fatal(err)
	}
	d, err = NewNATS(nc, NATSOptions{Subject: "silent", Total: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if o := d.Forward(t.Context(), Request{}, &sink{}); o.Kind != Failed || !o.Retry || o.Failure.Code != CodeTimeout {
		t.Errorf("silent service: %+v", o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if o := d.Forward(ctx, Request{}, &sink{}); o.Kind != Cancelled {
		t.Errorf("cancelled: %+v", o)
	}
	var s sink
	if o := d.Forward(t.Context(), Request{Body: make([]byte, 8<<20)}, &s); o.Kind != Refused || s.status != 413 {
		t.Errorf("too large: %+v, %d", o, s.status)
	}
	if _, err := NewNATS(nc, NATSOptions{}); err == nil {
		t.Error("no subject is a subject")
	}
}

type producer struct {
	err  error
	wait bool // until ctx ends
	sent mq.Outgoing
}

func (p *producer) Send(ctx context.Context, m mq.Outgoing) (mq.Receipt, error) {
	p.sent = m
	if p.wait {
		<-ctx.Done()
		return mq.Receipt{}, ctx.Err()
	}
	return mq.Receipt{MessageID: "id1"}, p.err
}

func TestTopic(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		kind Kind
		code string
	}{
		{"sent", nil, Done, ""},
		{"full", &mq.CodeError{Code: mq.CodeTooMany}, Failed, CodeBusy},
		{"disk full", &mq.CodeError{Code: mq.CodeDiskFull}, Failed, CodeBusy},
		{"too large", &mq.CodeError{Code: mq.CodeBodyTooLarge}, Refused, ""},
		{"no broker", errors.New("refused"), Failed, CodeUnreachable},
	} {
		p := &producer{err: tt.err}
		d, err := NewTopic(p, TopicOptions{Topic: "jobs", PerCell: true})
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Request: reply.Request{
			ID: "r", User: "u", Model: "m", Reply: "penstock.reply.g.r", Stream: true, Deadline: time.Unix(1, 0),
		}, Body: []byte("b")}
		var s sink
		o := d.Forward(t.Context(), r, &s)
		if o.Kind != tt.kind || o.Failure.Code != tt.code || o.Retry != (tt.kind == Failed) {
			t.Errorf("%s: %+v", tt.name, o)
		}
		if tt.kind == Done && (s.status != 202 || !strings.Contains(s.body, "id1")) {
			t.Errorf("the caller got %d %s", s.status, s.body)
		}
		sent := p.sent
		_, waits := sent.Properties[reply.PropertyReply]
		_, ends := sent.Properties[reply.PropertyDeadline]
		if sent.Topic != "jobs" || sent.Lite == "" || string(sent.Body) != "b" || sent.Properties[reply.PropertyUser] != "u" || waits || ends {
			t.Errorf("sent %+v", sent)
		}
	}
	if _, err := NewTopic(&producer{}, TopicOptions{}); err == nil {
		t.Error("no topic is a topic")
	}
}

func TestTopicTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := NewTopic(&producer{wait: true}, TopicOptions{Topic: "jobs", Total: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		o := d.Forward(t.Context(), Request{}, &sink{})
		if o.Kind != Failed || o.Failure.Code != CodeTimeout || time.Since(began) != 3*time.Second {
			t.Errorf("%+v after %v", o, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if o := d.Forward(ctx, Request{}, &sink{}); o.Kind != Cancelled {
			t.Errorf("deadline of the caller: %+v", o)
		}
	})
}
