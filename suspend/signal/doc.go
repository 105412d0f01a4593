// Package signal says by how much the load of a column or level is to be cut, from alarms, polled metrics and operators.
//
// It owns Signal with its JSON form, Board, which joins all signals of a target into one factor, and the parsers of what
// comes from outside: Alertmanager's webhook, Amazon SNS with its signatures, CloudWatch alarms, Prometheus text. It never
// does I/O, keeps a clock, or decides what a factor does to a limit: suspend/limit scales limits, suspend/quota asks the
// board. suspend/live carries signals between processes; broker/admin receives alarms.
//
// A Board belongs to one goroutine; all else is pure and safe for concurrent use. DESIGN.md has the rules and formats.
package signal
