// Package forward hands one request to its downstream and says what became of it.
//
// It owns: the downstreams ([HTTP] for OpenAI-compatible model servers, [NATS] for a subject, [Topic] for a RocketMQ
// topic), the choice between them by model ([Router]), and the reading of an upstream's answer: status, Retry-After,
// server-sent events, end marks, errors in mid-stream; what a request cost, by the upstream's own numbers or by what was
// sent ([Spent]), and what its end says about the upstream's load ([Feedback]).
//
// It never retries, but for a stream that was refused because of what it had added to the request itself (usage.go). It
// never waits for a limit, acks or suspends: it returns an [Outcome], and the pool decides. It logs nothing; API keys and
// bodies are in no error and no String.
//
// The pool calls it. A [Downstream] is safe for concurrent use; a [Sink] belongs to one Forward.
package forward
