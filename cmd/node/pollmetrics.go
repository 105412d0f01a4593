package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstockmq/penstock/suspend/live"
)

// pollCollector shows what the poller knows of each polled signal. There are as many as the policy names.
type pollCollector struct {
	poller                                  *live.Poller
	factor, value, stale, polls, fails, age *prometheus.Desc
}

func registerPoller(r prometheus.Registerer, p *live.Poller) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("penstock_poll_"+name, help, []string{"signal", "target"}, nil)
	}
	r.MustRegister(&pollCollector{
		poller: p,
		factor: desc("factor", "What the polled signal leaves of its target's limits, 0 to 1."),
		value:  desc("value", "The metric as it was read last."),
		stale:  desc("stale", "1 when the signal has stopped coming and its documented default is in force."),
		polls:  desc("reads_total", "Reads of the metric."),
		fails:  desc("failures_total", "Reads that failed."),
		age:    desc("read_timestamp_seconds", "When the metric was read last, in Unix time; 0: never."),
	})
}

// Describe implements [prometheus.Collector].
func (c *pollCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.factor, c.value, c.stale, c.polls, c.fails, c.age} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *pollCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.poller.Stats() {
		gauge := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
			ch <- prometheus.MustNewConstMetric(d, kind, v, s.Name, s.Target.String())
		}
		stale, at := 0.0, 0.0
		if s.Stale {
			stale = 1
		}
		if !s.At.IsZero() {
			at = float64(s.At.UnixMilli()) / 1000
		}
		gauge(c.factor, prometheus.GaugeValue, float64(s.Permille)/1000)
		gauge(c.value, prometheus.GaugeValue, s.Value)
		gauge(c.stale, prometheus.GaugeValue, stale)
		gauge(c.polls, prometheus.CounterValue, float64(s.Polls))
		gauge(c.fails, prometheus.CounterValue, float64(s.Failures))
		gauge(c.age, prometheus.GaugeValue, at)
	}
}
