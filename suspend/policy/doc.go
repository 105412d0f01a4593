// Package policy reads policy documents, which say how fast each cell (user and model) may go, and resolves a cell to its
// limits.
//
// It owns the format of a document, the precedence of its rules, and File, which follows a document on disk. It never
// enforces a limit or keeps the state of one: the gateway and the consumer pool resolve a cell and ask the limits
// themselves. A Document is immutable and safe for concurrent use.
//
// # Format
//
// YAML, one document:
//
//	version: 1
//	limits:
//	  - {user: alice, model: gpt-4o, rate: 5/s}               # 1 user+model
//	  - {user: alice, model: "*", rate: 20/s, burst: 200ms}   # 2 user+default model
//	  - {user: alice, rate: 20/s}                             # 3 user
//	  - {user: "*", model: gpt-4o, window: 100/1m}            # 4 default user+model
//	  - {user: "*", model: "*", depth: 1000, depth_bytes: 64MiB}  # 5 default user+default model
//	  - {user: "*", rate: 2/s}                                # 6 default user
//	  - {model: gpt-4o, rate: 3/s}                            # 7 model
//	  - {model: "*", rate: 1/s}                               # 8 default model
//
// The number is the rule's level: the precedence of Kafka's client quotas with client = model, see
// https://kafka.apache.org/documentation/#design_quotas. Each kind of limit (rate with its burst, window with its place of
// enforcement, depth, depth_bytes) is resolved on its own and comes from the first level that has a rule for it; so a rule
// that sets only a depth leaves the rate to the levels below. "unlimited" as a value ends the search with no limit. The order
// of rules in the document means nothing, and a selector may occur once. Each limit holds for one cell at a time: a rule
// for user alice gives each of her cells 20/s, not all of them together.
//
// # Errors
//
// Nothing is guessed. An unknown key, a value of the wrong type or out of bounds, a key that occurs twice, a second
// document, an alias or an empty file refuse the document as a whole. Each fault names its line, its key, what is wrong and what
// would be right.
package policy
