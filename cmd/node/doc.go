// Package node assembles the parts of Penstock into a running process.
//
// It owns the order of start and stop, the listeners, and the choice of what is
// embedded and what is elsewhere. It decides nothing about messages. The commands of
// cmd/penstock, the demo, the benchmarks and the tests of the whole start nodes.
//
// # Start and stop
//
// Parts are started bottom up, so that each finds what it needs: policy file, NATS,
// broker, gRPC, gateway, pool, and last the admin server. They run in three stages,
// which stop one after the other:
//
//	front  gateway, pool      no new requests; running ones may take Options.Grace;
//	                          polls of consumers elsewhere end once, as a sign
//	core   gRPC, broker       polls end, accepted writes are made to hold
//	base   admin, files       what others lean on
//
// A part that fails stops all: half a Penstock accepts what it cannot serve.
//
// A Node is safe for concurrent use after Start.
package node
