// Package live carries policies and load signals between all processes of an installation, in NATS JetStream.
//
// It owns the two key-value buckets (DESIGN.md has their formats), Policies, which follows the policy in force and keeps
// its history, Signals, which follows the signals in force, and Poller, which reads the metrics that a policy names and
// makes signals of them. It never enforces anything, and never parses a policy or joins signals itself: suspend/policy and
// suspend/signal do.
//
// Every process that decides by a policy or a signal opens both, and has read what is in force before Open returns: who
// joins late serves by the same rules from its first request on. While NATS cannot be reached, what was read last stays in
// force.
//
// All types are safe for concurrent use; each Run is to be called once.
package live
