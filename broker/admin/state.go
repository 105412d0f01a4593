package admin

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstockmq/penstock/broker"
)

// scrapeMax bounds how long a scrape waits for the owner loops.
const scrapeMax = 2 * time.Second

// stateCollector asks the broker for its gauges at each scrape: they are then of one
// moment, and cost nothing in between. Topics and groups are few and made by
// operators, so they may be labels.
type stateCollector struct {
	broker *broker.Broker
	// Immutable after newStateCollector.
	buckets, resident, messages, bytes                    *prometheus.Desc
	ready, parked, leases, returned, waiters, holds, subs *prometheus.Desc
	clients, idle, kept                                   *prometheus.Desc
	accounts, inFlight, held, wouldHold                   *prometheus.Desc
	disk, log, memTable, tables                           *prometheus.Desc
	compactions, syncs, syncsSkipped                      *prometheus.Desc
}

func newStateCollector(b *broker.Broker) *stateCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("penstock_"+name, help, labels, nil)
	}
	return &stateCollector{
		broker:   b,
		buckets:  desc("broker_buckets", "Buckets that exist.", "topic"),
		resident: desc("broker_buckets_resident", "Buckets that are in memory.", "topic"),
		messages: desc("broker_messages", "Messages that are kept.", "topic"),
		bytes:    desc("broker_message_bytes", "Bytes of their bodies.", "topic"),

		ready:    desc("broker_buckets_ready", "Buckets that may go now.", "topic", "group"),
		parked:   desc("broker_buckets_parked", "Buckets that wait for a gate to open.", "topic", "group"),
		leases:   desc("broker_leases", "Messages that are out.", "topic", "group"),
		returned: desc("broker_messages_returned", "Messages that came back and wait for their next delivery.", "topic", "group"),
		waiters:  desc("broker_waiters", "Polls that are parked.", "topic", "group"),
		holds:    desc("broker_suspends", "Suspends in force.", "topic", "group"),
		subs:     desc("broker_subscriptions", "Exact lite subscriptions.", "topic", "group"),

		clients: desc("broker_group_clients", "Consumers of the group that sent a request within the last three minutes.", "topic", "group"),
		idle:    desc("broker_group_idle_seconds", "Time without a consumer of the group while the broker ran.", "topic", "group"),
		kept:    desc("broker_group_kept_messages", "Messages that are kept for this group alone; approximate.", "topic", "group"),

		accounts:  desc("limit_accounts", "Cells, rows, columns and levels that owe something to a limit, or have messages out.", "topic", "group"),
		inFlight:  desc("limit_in_flight", "Messages out that limits count.", "topic", "group"),
		held:      desc("limit_held_total", "Times that a gate was found closed by a limit.", "topic", "group", "scope", "limit"),
		wouldHold: desc("limit_would_hold_total", "Times that a rule in shadow would have held a message.", "topic", "group", "scope", "limit"),

		disk:         desc("store_disk_bytes", "Files of the store that are in use."),
		log:          desc("store_log_bytes", "Of which its log."),
		memTable:     desc("store_memtable_bytes", "In memory and not yet in a table."),
		tables:       desc("store_tables", "Table files."),
		compactions:  desc("store_compactions_total", "Compactions done."),
		syncs:        desc("store_log_syncs_total", "Syncs of the log that went to the disk."),
		syncsSkipped: desc("store_log_syncs_skipped_total", "Syncs of the log that nothing needed."),
	}
}

// Describe implements [prometheus.Collector]. It sends nothing, which makes the
// collector unchecked: topics and groups come and go.
func (c *stateCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeMax)
	defer cancel()
	stats, err := c.broker.Stats(ctx)
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.buckets, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(c.disk, float64(stats.Store.DiskBytes))
	gauge(c.log, float64(stats.Store.LogBytes))
	gauge(c.memTable, float64(stats.Store.MemTableBytes))
	gauge(c.tables, float64(stats.Store.TableFiles))
	counter(c.compactions, float64(stats.Store.Compactions))
	counter(c.syncs, float64(stats.Store.Syncs))
	counter(c.syncsSkipped, float64(stats.Store.SyncsSkipped))
	for _, t := range stats.Topics {
		gauge(c.buckets, float64(t.Buckets), t.Topic)
		gauge(c.resident, float64(t.Resident), t.Topic)
		gauge(c.messages, float64(t.Messages), t.Topic)
		gauge(c.bytes, float64(t.Bytes), t.Topic)
		for i, g := range t.Groups {
			use := t.Uses[i]
			name := use.Name
			gauge(c.clients, float64(use.Clients), t.Topic, name)
			gauge(c.idle, use.Idle.Seconds(), t.Topic, name)
			gauge(c.kept, float64(use.Kept), t.Topic, name)
			gauge(c.ready, float64(g.Ready), t.Topic, name)
			gauge(c.parked, float64(g.Parked), t.Topic, name)
			gauge(c.leases, float64(g.Leases), t.Topic, name)
			gauge(c.returned, float64(g.Returned), t.Topic, name)
			gauge(c.waiters, float64(g.Waiters), t.Topic, name)
			gauge(c.holds, float64(g.Holds), t.Topic, name)
			gauge(c.subs, float64(g.Subscriptions), t.Topic, name)
			gauge(c.accounts, float64(g.Quota.Accounts), t.Topic, name)
			gauge(c.inFlight, float64(g.Quota.InFlight), t.Topic, name)
			for _, n := range g.Quota.Held {
				counter(c.held, float64(n.N), t.Topic, name, n.Scope.String(), n.Limit)
			}
			for _, n := range g.Quota.WouldHold {
				counter(c.wouldHold, float64(n.N), t.Topic, name, n.Scope.String(), n.Limit)
			}
		}
	}
}
