package admin

import (
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/penstockmq/penstock/broker"
)

// NewRegistry returns a registry with the metrics of the Go runtime, of the process
// and of the build. Each part of the process adds its own; the names begin with
// penstock_, and no label ever holds a user or a bucket: there may be millions.
func NewRegistry(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	goVersion := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		goVersion = info.GoVersion
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "penstock_build_info", Help: "Always 1; the labels say what runs.",
	}, []string{"version", "go_version"})
	build.WithLabelValues(version, goVersion).Set(1)
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build,
	)
	return r
}

// Observer is the broker's [broker.Observer]: it fills the histograms. It exists
// before the broker, whose options name it.
type Observer struct {
	queue, turn, commit prometheus.Histogram
}

// Buckets of the histograms, in seconds. A request may wait an hour for its turn;
// an fsync that takes a second is a disk that is failing.
var (
	queueBuckets  = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
	commitBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}
)

// NewObserver returns an Observer whose histograms are in r.
func NewObserver(r prometheus.Registerer) *Observer {
	o := &Observer{
		queue: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_broker_queue_seconds", Help: "Time from a message's append to its delivery.", Buckets: queueBuckets,
		}),
		turn: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_broker_turn_seconds", Help: "Duration of one turn of an owner loop.", Buckets: commitBuckets,
		}),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_store_commit_seconds", Help: "Time from handing a batch to the store until it held.", Buckets: commitBuckets,
		}),
	}
	r.MustRegister(o.queue, o.turn, o.commit)
	return o
}

// QueueTime implements [broker.Observer].
func (o *Observer) QueueTime(d time.Duration) { o.queue.Observe(d.Seconds()) }

// Turn implements [broker.Observer].
func (o *Observer) Turn(d time.Duration) { o.turn.Observe(d.Seconds()) }

// Commit implements [broker.Observer].
func (o *Observer) Commit(d time.Duration) { o.commit.Observe(d.Seconds()) }

// RegisterBroker adds the broker's counters and gauges to r.
func RegisterBroker(r prometheus.Registerer, b *broker.Broker) {
	m := b.Metrics()
	for _, c := range []struct {
		name, help string
		value      func() int64
	}{
		{"sends_total", "Messages made durable.", m.Sends.Load},
		{"sends_refused_total", "Messages refused by a cap.", m.SendRefused.Load},
		{"sends_refused_user_buckets_total", "Sends refused because the user has its maximum of buckets.", m.UserRefused.Load},
		{"deliveries_total", "Messages handed to a consumer.", m.Deliveries.Load},
		{"redeliveries_total", "Deliveries with an attempt above 1.", m.Redeliveries.Load},
		{"acks_total", "Messages settled by an ack.", m.Acks.Load},
		{"clock_steps_total", "Times the wall clock was set, seen by each parent topic.", m.ClockSteps.Load},
		{"pauses_total", "Times the broker did not run for over 2 s, seen by each parent topic; leases were prolonged.", m.Pauses.Load},
		{"sends_late_total", "Sends refused because the deadline of a message had passed by the broker's clock.", m.LateSends.Load},
		{"acks_stale_total", "Acks of a message that is out again or gone.", m.StaleAcks.Load},
		{"suspends_total", "Suspends that a consumer asked for.", m.Suspends.Load},
		{"leases_ended_total", "Leases that ran out.", m.LeasesEnded.Load},
		{"dead_letters_total", "Messages that became dead letters.", m.DeadLetters.Load},
		{"dead_letters_unreadable_total", "Dead letters of messages that are damaged on disk; included in the dead letters.", m.Unreadable.Load},
		{"expired_total", "Messages whose deadline passed while they were queued.", m.Expired.Load},
		{"recalled_total", "Messages cancelled while they were queued.", m.Recalled.Load},
		{"buckets_created_total", "Buckets made by their first message.", m.Created.Load},
		{"buckets_deleted_total", "Buckets removed after their idle time.", m.Deleted.Load},
		{"polls_empty_total", "Polls that ended without a message.", m.EmptyPolls.Load},
		{"groups_retired_total", "Groups removed after their retention without a consumer.", m.GroupsRetired.Load},
		{"retired_messages_total", "Messages that were kept for removed groups alone.", m.RetiredMessages.Load},
		{"turns_total", "Batches written by the owner loops.", m.Turns.Load},
	} {
		r.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Namespace: "penstock", Subsystem: "broker", Name: c.name, Help: c.help},
			func() float64 { return float64(c.value()) },
		))
	}
	r.MustRegister(newStateCollector(b), newDamageCollector(b))
}
