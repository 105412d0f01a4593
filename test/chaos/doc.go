// Package chaos breaks a running penstock and judges the result.
//
// A scenario starts the built program, puts callers, senders and a consumer on it, injects faults, and asks a checker at
// the end. The checker (check_test.go) is pure: it gets the history of the run and returns findings. Its rules are the
// promises of the README:
//
//   - an accepted request (202) ends: with its own answer, or with a code that says why not;
//   - a message whose send was answered OK is delivered, and not again after its ack was answered OK or before its lease ends;
//   - the model does not run a request while it runs it already, nor after its caller saw the first byte or the end of the answer;
//   - no caller waits beyond its time-out;
//   - a hold does not end early, a limit is not exceeded, a policy stays in force;
//   - a caller that does not read takes little memory and little of the model.
//
// The history holds only the observations of clients and the model, so no rule depends on the part of the program that it judges.
//
// The faults are kill -9, SIGTERM, and SIGSTOP for longer than a lease, of `penstock up` and of broker, gateway and
// consumer as processes of their own; a full disk; damaged files of JetStream; steps of the wall clock; callers that do not
// read. The full disk needs a tmpfs, which only root can mount; its scenario is skipped otherwise.
//
// `go test ./test/chaos` injects a fixed list, which takes about a minute. `make chaos DURATION=30m` goes on with random
// lists until the time is over.
package chaos
