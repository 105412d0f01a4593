package node

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstockmq/penstock/consumer"
	"github.com/penstockmq/penstock/consumer/forward"
	"github.com/penstockmq/penstock/consumer/reply"
	"github.com/penstockmq/penstock/gateway"
	"github.com/penstockmq/penstock/suspend"
)

// waitBuckets are seconds: a request may be answered in a millisecond or wait an hour.
var waitBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}

// gatewayObserver is the gateway's [gateway.Observer].
type gatewayObserver struct {
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	queue    prometheus.Histogram
}

func newGatewayObserver(r prometheus.Registerer) *gatewayObserver {
	o := &gatewayObserver{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gateway_requests_total", Help: "Answers by route, code and HTTP status.",
		}, []string{"route", "code", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_gateway_request_seconds", Help: "Time from a request's head to the end of its answer.", Buckets: waitBuckets,
		}, []string{"route"}),
		queue: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_gateway_queue_seconds", Help: "Time from acceptance until a worker took the request.", Buckets: waitBuckets,
		}),
	}
	r.MustRegister(o.requests, o.took, o.queue)
	return o
}

// Request implements [gateway.Observer].
func (o *gatewayObserver) Request(route, code string, status int, took time.Duration) {
	o.requests.WithLabelValues(route, code, strconv.Itoa(status)).Inc()
	o.took.WithLabelValues(route).Observe(took.Seconds())
}

// QueueTime implements [gateway.Observer].
func (o *gatewayObserver) QueueTime(waited time.Duration) { o.queue.Observe(waited.Seconds()) }

// registerGateway adds the gateway's counters and gauges to r.
func registerGateway(r prometheus.Registerer, g *gateway.Gateway) {
	m := g.Metrics()
	counters(r, "gateway", []counter{
		{"accepted_total", "Requests sent to the broker.", m.Accepted.Load},
		{"refused_total", "Requests refused by a limit, a full bucket or an overload.", m.Refused.Load},
		{"async_total", "Asynchronous ones of the accepted.", m.Async.Load},
		{"keepalives_total", "Comments sent on streams whose request was queued.", m.KeepAlives.Load},
		{"recalled_total", "Requests taken out of their bucket again.", m.Recalled.Load},
		{"cancelled_total", "Requests cancelled at a worker or on their way to it.", m.Cancelled.Load},
		{"refused_store_total", "Asynchronous requests refused by a full request store; included in the refused.", m.StoreFull.Load},
		{"broken_total", "Answers that broke off after their first byte.", m.Broken.Load},
		{"slow_bodies_total", "Requests whose body arrived too slowly.", m.SlowBodies.Load},
		{"refused_share_total", "Requests refused because their user has reached the share of one user; included in the refused.", m.Shared.Load},
		{"strangers_dropped_total", "Connections closed to make room before a request on them showed a known key.", func() int64 { return g.Callers().Dropped }},
		{"unread_total", "Callers cut because they read nothing of their answer for the write timeout.", m.Unread.Load},
		{"slow_answers_total", "Answers that failed because their caller was slower than the gateway's buffers allow.", func() int64 { return g.Answers().Slow }},
		{"refused_full_total", "Of the refused: by a full bucket.", m.Full.Load},
		{"would_refuse_total", "Requests let in that a rule in shadow would have refused.", m.WouldRefuse.Load},
		{"would_fill_total", "Of those: by a depth in shadow.", m.WouldFill.Load},
		{"windows_alone_total", "Windows that this gateway counted alone, because the account of all could not be reached.", m.Alone.Load},
		{"unexplained_total", "Questions why a request waits that nobody could answer.", m.Unexplained.Load},
	})
	byScope(r, "refused_limit_total", "Of the refused: by the window of a scope.", &m.Limited)
	byScope(r, "would_limit_total", "Of those that would have been refused: by the window of a scope in shadow.", &m.WouldLimit)
	gauges(r, "gateway", []counter{
		{"active_requests", "Requests being answered now.", m.Active.Load},
		{"cells", "Users and models that are remembered.", func() int64 { return int64(g.Stats().Cells) }},
		{"window_accounts", "Windows of which something is used.", func() int64 { return int64(g.Stats().Accounts) }},
		{"queued_requests", "Requests of this gateway that wait in buckets.", func() int64 { return g.Stats().Queued }},
		{"reply_streams", "Reply streams that are open.", func() int64 { return int64(g.Stats().Streams) }},
		{"body_bytes", "Bytes of bodies that the broker does not have yet.", func() int64 { return g.Callers().BodyBytes }},
		{"strangers", "Connections on which no request has shown a known key.", func() int64 { return g.Callers().Strangers }},
		{"answer_bytes", "Bytes of answers that wait for their callers.", func() int64 { return g.Answers().Held }},
		{"link_bytes", "Bytes of answers that may be on their way from NATS; falls when that link is slow.", func() int64 { return g.Answers().LinkBytes }},
	})
}

// byScope adds a counter of the gateway for each scope.
func byScope(r prometheus.Registerer, name, help string, n *gateway.ByScope) {
	for scope := range n {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "penstock", Subsystem: "gateway", Name: name, Help: help,
			ConstLabels: prometheus.Labels{"scope": suspend.Scope(scope).String()},
		}, func() float64 { return float64(n[scope].Load()) }))
	}
}

// counter is a number that is read at each scrape.
type counter struct {
	name, help string
	value      func() int64
}

func counters(r prometheus.Registerer, subsystem string, list []counter) {
	for _, c := range list {
		r.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Namespace: "penstock", Subsystem: subsystem, Name: c.name, Help: c.help},
			func() float64 { return float64(c.value()) },
		))
	}
}

func gauges(r prometheus.Registerer, subsystem string, list []counter) {
	for _, c := range list {
		r.MustRegister(prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Namespace: "penstock", Subsystem: subsystem, Name: c.name, Help: c.help},
			func() float64 { return float64(c.value()) },
		))
	}
}

// poolObserver is the pool's [consumer.Observer].
type poolObserver struct {
	queued   prometheus.Histogram
	upstream *prometheus.HistogramVec
}

func newPoolObserver(r prometheus.Registerer) *poolObserver {
	o := &poolObserver{
		queued: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_pool_queue_seconds", Help: "Time from a request's acceptance until it was forwarded.", Buckets: waitBuckets,
		}),
		// Its _count is the number of requests by outcome.
		upstream: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_pool_upstream_seconds", Help: "Time of a request at its downstream, by outcome.", Buckets: waitBuckets,
		}, []string{"outcome"}),
	}
	r.MustRegister(o.queued, o.upstream)
	return o
}

// Queued implements [consumer.Observer].
func (o *poolObserver) Queued(d time.Duration) { o.queued.Observe(d.Seconds()) }

// Upstream implements [consumer.Observer].
func (o *poolObserver) Upstream(k forward.Kind, d time.Duration) {
	o.upstream.WithLabelValues(k.String()).Observe(d.Seconds())
}

// registerPool adds the pool's counters and gauges to r.
func registerPool(r prometheus.Registerer, m *consumer.Metrics) {
	counters(r, "pool", []counter{
		{"received_total", "Messages received.", m.Received.Load},
		{"forwarded_total", "Requests sent to a downstream.", m.Forwarded.Load},
		{"answered_total", "Requests whose caller has a 2xx.", m.Answered.Load},
		{"refused_total", "Requests whose caller has the upstream's 4xx.", m.Refused.Load},
		{"limited_total", "Messages suspended by a limit of the policy.", m.Limited.Load},
		{"full_total", "Messages suspended because their model is at its concurrency, or it or their user holds its share of the workers.", m.Full.Load},
		{"busy_total", "Messages suspended by a Retry-After of the upstream.", m.Busy.Load},
		{"returned_total", "Messages given back because the pool stops.", m.Returned.Load},
		{"retried_total", "Requests that failed and come again.", m.Retried.Load},
		{"dead_total", "Requests that failed and went to the dead letters.", m.Dead.Load},
		{"cancelled_total", "Requests whose caller left.", m.Cancelled.Load},
		{"expired_total", "Requests whose deadline passed.", m.Expired.Load},
		{"lost_total", "Requests whose lease was lost while they ran.", m.Lost.Load},
		{"unkept_total", "Answers dropped because the request store had no room for them in time.", m.Unkept.Load},
		{"untold_total", "Asynchronous requests whose end could not be stored.", m.Untold.Load},
		{"panics_total", "Panics of downstreams.", m.Panics.Load},
	})
	gauges(r, "pool", []counter{
		{"handling", "Messages in a handler.", m.Handling.Load},
		{"unstored", "Outcomes of asynchronous requests that wait for the request store.", m.Unstored.Load},
		{"unstored_bytes", "Bytes of answers that wait for the request store.", m.UnstoredBytes.Load},
		{"in_flight", "Requests at a downstream.", m.InFlight.Load},
		{"waiting", "Handlers that wait out a short limit.", m.Waiting.Load},
	})
}

// registerRequests adds the fill of the store of asynchronous requests. If the store does not answer, the values are 0.
func registerRequests(r prometheus.Registerer, store *reply.Store) {
	room := func(field func(reply.Room) int64) func() int64 {
		return func() int64 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			now, err := store.Room(ctx)
			if err != nil {
				return 0
			}
			return field(now)
		}
	}
	gauges(r, "async", []counter{
		{"records", "Asynchronous requests that are kept.", room(func(r reply.Room) int64 { return r.Records })},
		{"record_bytes", "Bytes of the records of asynchronous requests.", room(func(r reply.Room) int64 { return r.RecordBytes })},
		{"record_bytes_max", "Largest size of all records of asynchronous requests.", room(func(r reply.Room) int64 { return r.RecordBytesMax })},
		{"result_bytes", "Bytes of large results of asynchronous requests.", room(func(r reply.Room) int64 { return r.ResultBytes })},
		{"result_bytes_max", "Largest size of all large results of asynchronous requests.", room(func(r reply.Room) int64 { return r.ResultBytesMax })},
	})
}

// registerTeller adds the counts of callers whose requests the broker gave up.
func registerTeller(r prometheus.Registerer, t *teller) {
	counters(r, "teller", []counter{
		{"untold_total", "Callers that could not be notified that the broker gave up their request.", t.untold.Load},
	})
	gauges(r, "teller", []counter{
		{"waiting", "Notifications to callers, about requests that the broker gave up, that wait to be sent.", func() int64 { return int64(len(t.queue)) }},
	})
}
