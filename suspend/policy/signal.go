package policy

import "time"

// Scaled is what a signal or an alarm scales: a column or a level.
type Scaled struct {
	Section Section // Columns or Levels
	Name    string  // the model, or "0" to "3"; empty if By is set
	By      string  // of Columns: the label whose value names the model
}

// Aggregate is how the series of one target become one value.
type Aggregate uint8

// The aggregates.
const (
	Sum Aggregate = iota
	Max
	Avg
)

var aggregateNames = [...]string{"sum", "max", "avg"}

func (a Aggregate) String() string {
	if int(a) < len(aggregateNames) {
		return aggregateNames[a]
	}
	return "aggregate?"
}

// Signal is a metric of a backend that is polled, and what its value does to a column or level.
type Signal struct {
	Name       string
	Of         Scaled
	URL        string        // of a Prometheus text page, http or https
	Series     string        // metric name, with label="value" selectors in braces if there are any; see ParseSeries
	Target     float64       // the value up to which the backend is well; above it, the factor is Target/value
	Interval   time.Duration // between polls
	StaleAfter time.Duration // without an answer for so long, WhenStale holds
	Floor      int64         // lowest factor, permille
	WhenStale  int64         // factor of a stale signal, permille
	Aggregate  Aggregate
	File       string
	Line       int
}

// Alarm is which alarms that are posted to the broker matter, and what they do to a column or level.
type Alarm struct {
	Name     string
	Match    map[string]string // labels that the alarm must have, with these values; read only
	Of       Scaled
	Factor   int64         // while it fires, permille
	For      time.Duration // how long one post holds: who does not repeat it is taken to have resolved it
	HoldDown time.Duration // how long the factor stays after it is resolved, so that a flapping alarm does not flap through
	File     string
	Line     int
}

// Signals are those to poll, by name.
func (d *Document) Signals() []Signal { return d.signals }

// Alarms are the known alarms, by name.
func (d *Document) Alarms() []Alarm { return d.alarms }
