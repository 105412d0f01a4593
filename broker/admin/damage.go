package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstockmq/penstock/broker"
)

// damageCollector reports, at each scrape, unreadable and unwritable data of the store, and
// the free space on its volume. It asks no owner loop: a broker that hangs on its disk still
// reports.
type damageCollector struct {
	broker                                             *broker.Broker
	records, blocks, cutBytes, cutBatches, backgrounds *prometheus.Desc
	free, reserve, refusing                            *prometheus.Desc
}

func newDamageCollector(b *broker.Broker) *damageCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("penstock_store_"+name, help, nil, nil)
	}
	return &damageCollector{
		broker:      b,
		records:     desc("unreadable_records_total", "Reads that met a record which does not decode."),
		blocks:      desc("damaged_blocks_total", "Reads that met a damaged block of a file."),
		cutBytes:    desc("log_cut_bytes", "Bytes at the end of the log that were cut off at the start, torn by a crash or damaged."),
		cutBatches:  desc("log_cut_batches", "Batches in the bytes cut off at the start, as far as recognized."),
		backgrounds: desc("background_errors_total", "Flushes and compactions that failed and were tried again."),
		free:        desc("disk_free_bytes", "Free bytes on the volume of the data folder, including the ballast."),
		reserve:     desc("disk_reserve_bytes", "Free bytes that are kept for acks, purges and recovery; 0 without a reserve."),
		refusing:    desc("disk_refusing", "1 while new messages are refused because the free bytes are below the reserve."),
	}
}

// Describe implements [prometheus.Collector].
func (c *damageCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.records, c.blocks, c.cutBytes, c.cutBatches, c.backgrounds, c.free, c.reserve, c.refusing} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *damageCollector) Collect(out chan<- prometheus.Metric) {
	m := c.broker.StoreMetrics()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v int64) {
		out <- prometheus.MustNewConstMetric(d, kind, float64(v))
	}
	send(c.records, prometheus.CounterValue, m.BadRecords)
	send(c.blocks, prometheus.CounterValue, m.BadBlocks)
	send(c.cutBytes, prometheus.GaugeValue, m.CutBytes)
	send(c.cutBatches, prometheus.GaugeValue, m.CutRecords)
	send(c.backgrounds, prometheus.CounterValue, m.BackgroundErrors)
	disk := c.broker.Space()
	send(c.free, prometheus.GaugeValue, disk.Free)
	send(c.reserve, prometheus.GaugeValue, disk.Reserve)
	refusing := int64(0)
	if disk.Refusing {
		refusing = 1
	}
	send(c.refusing, prometheus.GaugeValue, refusing)
}
