// Package policy reads policy documents, which say how fast each cell (user and model) may go, what rows, columns, levels and brokers
// may use together and who is important, and resolves a cell to what holds for it.
//
// It owns the format of a document, its JSON Schema, the precedence of its rules, the comparison of two documents, and File, which
// follows a document on disk. It never enforces a limit or keeps the state of one, and it neither polls a signal nor
// receives an alarm: the broker's ledger, the gateway and the consumer pool ask it what holds. A Document is immutable and
// safe for concurrent use; what it returns is shared with it and read only.
//
// # Format
//
// YAML or JSON, one document. Every key but version may be left out:
//
//	version: 1
//	cost: tokens          # what a turn costs, so what is shared fairly: requests (default), tokens or bytes
//	default_level: 1      # importance of what has no entry, 0 (most important) to 3
//	limits:               # each cell by itself; the number is the precedence
//	  - {user: alice, model: gpt-4o, rate: 5/s}                   # 1 user+model
//	  - {user: alice, model: "*", rate: 20/s, burst: 200ms}       # 2 user+default model
//	  - {user: alice, weight: 3, in_flight: 4}                    # 3 user
//	  - {user: "*", model: gpt-4o, tokens: 100000/1m}             # 4 default user+model
//	  - {user: "*", model: "*", depth: 1000, depth_bytes: 64MiB}  # 5 default user+default model
//	  - {user: "*", rate: 2/s, deadline: 10m}                     # 6 default user
//	  - {model: gpt-4o, window: 100/1m, window_at: admission}     # 7 model
//	  - {model: "*", rate: 1/s}                                   # 8 default model
//	  - {user: "*", rate: 1/s, shadow: true}                      # counted beside, holds nothing
//	rows:                 # all cells of a user together
//	  - {user: alice, quota: 50/s, quota_burst: 500}
//	  - {user: "*", observed: 20/s, samples: 11x1s, observed_cap: 30s}
//	columns:              # all cells of a model together: its capacity
//	  - {model: gpt-4o, in_flight: 64}
//	  - {model: "*", adaptive: {min: 2, max: 64, start: 8, latency: 20s, decrease: 0.7, cooldown: 1s}}
//	levels:               # all cells of an importance level together
//	  - {level: 3, rate: 100/s}
//	broker: {bytes_in: 10MiB/s, bytes_out: 100MiB/s}   # everything one broker sends out; or a list with one in shadow
//	importance:           # most specific first: key, user and model, user, model
//	  - {key: nightly-batch, level: 3}
//	  - {user: alice, level: 0}
//	signals:              # metrics of backends that are polled
//	  - {name: vllm, column: gpt-4o, url: "http://gpu:8000/metrics", series: "vllm:num_requests_waiting", target: 5}
//	  - {name: kv, by: model_name, url: "http://gpu:8000/metrics", series: "vllm:kv_cache_usage_perc", target: 0.9, aggregate: max}
//	alarms:               # what posted alarms do
//	  - {name: db, match: {alertname: DatabaseSlow}, level: 3, factor: 0.2, for: 10m, hold_down: 30s}
//	  - {name: gpu, match: {alertname: GpuHot}, column_label: model, factor: 0.5}
//
// The limits, which suspend/limit explains one by one:
//
//	rate N/TIME, burst TIME               even release (GCRA) with a tolerance
//	window N/TIME, window_at              fixed window; asked at admission (the gateway refuses; so for cells unless said
//	                                      otherwise) or at release (the request waits; so for all others)
//	quota N/TIME, quota_burst N           token bucket that goes into debt
//	observed N/TIME, samples, observed_cap  holds back what was above the rate over samples (11, or 100x250ms)
//	in_flight N                           messages with workers at once; a cell's default is its consumer group's
//	tokens N/TIME                         model tokens per window, reserved by estimate and settled by usage
//	bytes_in, bytes_out SIZE/TIME         bytes of requests and of answers
//	adaptive                              columns only: messages in flight, found from the model's answers
//	depth N, depth_bytes SIZE             cells only: what may be queued
//	deadline TIME                         cells only: how long it may be queued
//	weight N                              cells only: share of turns, 1 to 1000
//
// # Which rule holds
//
// The precedence in limits is that of Kafka's client quotas with client = model, see
// https://kafka.apache.org/documentation/#design_quotas. Each kind of limit, with the keys that refine it, is resolved on its own and comes
// from the first level that has a rule for it; so a rule that sets only a depth leaves the rate to the levels below. "unlimited" as
// a value ends the search with no limit. The order of rules in the document means nothing, and a selector may occur once.
// Rows and columns have two levels: the entry of the name, then that of "*", which holds for each that it is asked for
// by itself. All that hold (the cell's own, and those of its row, column, level and broker) apply together.
//
// A rule with shadow: true is never enforced. Shadow rules have a precedence of their own: they are resolved among
// themselves, and one selector may have a rule of each sort.
//
// # Signals and alarms
//
// Both scale the limits of a column or a level by a factor from 0 to 1: a signal by target/value as far as the value of the series is above
// its target, not below floor (0.1), or by when_stale (0.5) once no value came for stale_after (three intervals); an alarm by its
// factor from when it is posted until hold_down after it is resolved, or for as long as for says. A signal with by, and an
// alarm with column_label, scales the column that the label names. What has no limit cannot be scaled, so a signal or an alarm for
// it is refused.
//
// # Several files
//
// Open reads a directory's *.yaml and *.yml files, each with its version, as one document. What one file says no other
// may say again; the fault names both places.
//
// # Errors
//
// Nothing is guessed. An unknown key, a value of the wrong type or out of bounds, a key that occurs twice, one that refines a limit
// the rule does not set, a second document, an alias or an empty file refuse the document as a whole. Each fault names its file and line,
// its key, what is wrong and what would be right.
package policy
