// Package sim runs a policy over a trace of requests on virtual time.
//
// It owns the trace's format and a pool of imaginary workers; what goes when is decided by package broker/dispatch with
// its ledger, the code that the broker runs. An hour of a thousand tenants takes seconds, and two runs give the same
// answer to the nanosecond. The commands `policy simulate` and `bench` call it.
package sim
