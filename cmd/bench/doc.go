// Package bench measures Penstock from outside: each scenario starts what it needs
// on loopback, loads it for a bounded time, and returns figures that print as a
// table or as JSON. Nothing here asserts a figure; whoever reads it judges.
//
// The commands demo and bench call it.
package bench
