package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/live"
	"github.com/penstockmq/penstock/suspend/signal"
)

// signalCollector shows the load signals in force. Its labels are columns and levels,
// which the policy names, and never a source: alerts may be many.
type signalCollector struct {
	store SignalStore
	// Immutable after RegisterSignals.
	factor, stale, signals, displaced *prometheus.Desc
}

// RegisterSignals adds the load signals in force to r.
func RegisterSignals(r prometheus.Registerer, s SignalStore) {
	labels := []string{"scope", "name"}
	r.MustRegister(&signalCollector{
		store:     s,
		factor:    prometheus.NewDesc("penstock_signal_factor", "Lowest factor that a load signal asks for, 0 to 1.", labels, nil),
		stale:     prometheus.NewDesc("penstock_signal_stale", "Load signals whose metric is stale; their configured default is in force.", labels, nil),
		displaced: prometheus.NewDesc("penstock_alarms_displaced_total", "Alarms of senders without a proof that were displaced by other alarms.", nil, nil),
		signals:   prometheus.NewDesc("penstock_signal_sources", "Load signals in force.", labels, nil),
	})
}

// Describe implements [prometheus.Collector]. It sends nothing, which makes the
// collector unchecked: targets come and go.
func (c *signalCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c *signalCollector) Collect(out chan<- prometheus.Metric) {
	type sum struct{ permille, stale, sources int64 }
	sums := make(map[suspend.Target]sum)
	now := time.Now()
	for _, s := range c.store.All() {
		permille, stale := s.Effective(now)
		t, ok := sums[s.Target]
		if !ok {
			t.permille = signal.Full
		}
		t.permille = min(t.permille, permille)
		t.sources++
		if stale {
			t.stale++
		}
		sums[s.Target] = t
	}
	out <- prometheus.MustNewConstMetric(c.displaced, prometheus.CounterValue, float64(c.store.Displaced()))
	for target, t := range sums {
		labels := []string{target.Scope.String(), target.Name}
		out <- prometheus.MustNewConstMetric(c.factor, prometheus.GaugeValue, float64(t.permille)/signal.Full, labels...)
		out <- prometheus.MustNewConstMetric(c.stale, prometheus.GaugeValue, float64(t.stale), labels...)
		out <- prometheus.MustNewConstMetric(c.signals, prometheus.GaugeValue, float64(t.sources), labels...)
	}
}

// PollStats is where the numbers of polls come from; [live.Poller] is the one there is.
type PollStats interface {
	Stats() []live.PollStats
}

// pollCollector shows what a poller reads.
type pollCollector struct {
	poller PollStats
	// Immutable after RegisterPoller.
	value, stale, age, polls, failures *prometheus.Desc
}

// RegisterPoller adds what the poller reads to r.
func RegisterPoller(r prometheus.Registerer, p PollStats) {
	of, each := []string{"signal", "scope", "name"}, []string{"signal"}
	r.MustRegister(&pollCollector{
		poller:   p,
		value:    prometheus.NewDesc("penstock_poll_value", "The metric as it was read last.", of, nil),
		stale:    prometheus.NewDesc("penstock_poll_stale", "1 if nobody has read it for nearly two intervals.", of, nil),
		age:      prometheus.NewDesc("penstock_poll_last_read_timestamp_seconds", "When this process read it last.", of, nil),
		polls:    prometheus.NewDesc("penstock_polls_total", "Polls of the signal's page.", each, nil),
		failures: prometheus.NewDesc("penstock_polls_failed_total", "Polls that gave no reading.", each, nil),
	})
}

// Describe implements [prometheus.Collector]; it sends nothing, for signals come and go.
func (c *pollCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c *pollCollector) Collect(out chan<- prometheus.Metric) {
	last := ""
	for _, s := range c.poller.Stats() { // by name
		labels := []string{s.Name, s.Target.Scope.String(), s.Target.Name}
		stale := 0.0
		if s.Stale {
			stale = 1
		}
		out <- prometheus.MustNewConstMetric(c.stale, prometheus.GaugeValue, stale, labels...)
		if !s.At.IsZero() { // a metric that was never read has no value, not 0
			out <- prometheus.MustNewConstMetric(c.value, prometheus.GaugeValue, s.Value, labels...)
			out <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, float64(s.At.UnixMilli())/1000, labels...)
		}
		if s.Name != last {
			last = s.Name
			out <- prometheus.MustNewConstMetric(c.polls, prometheus.CounterValue, float64(s.Polls), s.Name)
			out <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(s.Failures), s.Name)
		}
	}
}
