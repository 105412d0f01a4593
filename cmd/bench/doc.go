// Package bench measures Penstock from outside: each scenario starts what it needs
// on loopback, loads it for a bounded time, and returns figures that print as a
// table or as one line of JSON, with checks of what they have to show. The checks
// compare what was measured, never what was configured.
//
// The commands demo and bench call it.
package bench
