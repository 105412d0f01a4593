// Package gateway is the HTTP front: it turns a caller's HTTP request into a message in the bucket of its user and model,
// and the reply stream of that message into the HTTP answer.
//
// It owns: who the caller is (API keys, see [Keys]); whether a request may enter (the fixed windows and the depth caps of
// the policy, see admission); what a request weighs (tokens.go); the way of a request through its waiting time ([Gateway]);
// the one table of errors (status.go).
//
// It never calls a model, never retries one, and never holds a request's place in memory only: what it has answered with
// 202, and what it waits for, is durable in the broker. Of a body it reads the fields "model" and "stream", the size of the
// prompt and the bound of the answer, and it logs none of it. The tenant is the owner of the API key; no header, query or
// body field can choose another, nor how important a request is.
//
// cmd wires it to a producer (consumer/mq), a NATS connection (consumer/reply), a policy (suspend/policy) and to whoever
// knows why a request waits ([Explain]).
//
// Concurrency: a [Gateway] serves any number of requests at once. Each request is one goroutine of net/http, which does
// everything for it and ends with it: there is no goroutine in the background but those of Run and of the key file.
//
// # Life of a request
//
//	identify ─▶ read and check ─▶ admit ─▶ open reply stream ─▶ send ─▶ wait ─▶ answer
//	   401          400 404 413      429           503         429 503    504
//
// A request without a known key holds no shared resource: its connection is one of a bounded number, and the rest of
// its body is not awaited. With a key the request counts in the share of its user, and its body counts as it arrives, from
// the first byte until the broker has it: 429 if the user has reached the share of one user (see shares), 503 if the gateway
// is full, 408 if the body is slower than [Options] allow.
//
// From "send" on a request is in the broker, and whatever ends the wait before the answer (the caller leaves, its
// deadline passes, the gateway stops) takes it out again: recalled from its bucket while it is queued, cancelled over
// NATS when a worker has it.
//
// # What goes with a message
//
// Beside who and what (see consumer/reply): penstock-input-tokens, the bytes of the prompt's text divided by 4, rounded up,
// at least 1, of /v1/enqueue those of the body; penstock-max-tokens, the largest of max_completion_tokens, max_tokens
// and max_output_tokens if one is given (400 if it is over lite.MaxOutputTokens, 1,048,576); penstock-level, if the policy gives the API key of that name an importance.
// Without it the broker takes the importance of user and model, by the same policy. Both token counts are estimates: the
// account of a budget is corrected by what the model says it used.
//
// # Limits
//
// Refused at the door, with 429: what is over a fixed window that the policy asks at admission, of the cell, its row, its
// column, its level, or all; and what finds its bucket full (depth, depth_bytes). They are asked as one: a request takes its share
// of all or of none. All other limits keep a request in its bucket instead, and are the broker's.
//
// A policy's deadline is the time limit of a request of its cell that names none.
//
// Shadow rules are asked as one as well, after the enforced ones have let the request in: what they would have refused is
// counted ([Metrics]) and goes its way.
//
// RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-09) show the limit that binds: of a refusal the one that
// opens last, of an answer the one with the least left at admission. See quota.
//
// # Retry-After
//
// Each refusal that is worth another try has a Retry-After: whole seconds, rounded up, at least 1.
//
//   - A window knows when it opens. Who is refused alone is told that instant, and is let in then. Several are spread over up
//     to a fifth of the wait beyond it, each by a share that is its own. The share is a hash and not drawn anew, and
//     what it is a share of shrinks with the wait; so the value of one caller falls from answer to answer and never rises,
//     and yet a thousand that are refused in one millisecond come back over many seconds. See crowd, also for who is taken
//     for one caller.
//   - A full bucket promises each caller another of the places to come, at the pace that was measured. See drain. It is an
//     estimate: a bucket that is held takes longer, and then the next value is larger.
//   - A queued asynchronous request names half of the time until its estimated start, or, without an estimate, a twentieth of a
//     second for each request ahead; from 1 s to 60 s. So the callers of a deep bucket do not all ask each second.
//   - A gateway, broker or NATS in trouble (503) names a guess, 1 to 4 s, always the same to one connection.
//
// # Several gateways
//
// A window is one for all gateways of a NATS cluster that serve the same parent topic: each may let in only what it was
// granted from an account in JetStream, a part of what is left at a time (see sharedWindows). So the total stays what the policy says
// when a gateway dies, starts again or is added; what one held and did not use when it died is missing until its window
// ends, at most a sixteenth of what was left of it. A grant costs a round trip or two, for one request in many of a large
// window, for each of a small one. Gateways whose clocks differ by more than a second may let in more around the end of a
// window. While JetStream cannot be reached each gateway counts alone, so several have the whole window each; [Metrics]
// (Alone) and the log say so.
//
// A Penstock broker checks the depths itself, where the messages are: they hold for all gateways and all other senders, and
// across restarts. In addition each gateway counts the requests that it admitted: a refusal by that count needs no call, and
// Retry-After is derived from it. With a RocketMQ cluster, which knows no policy, that count is the only check: then each
// gateway has the whole depth, and forgets the queued requests when it restarts. Shadow rules, too, count per gateway.
//
// # Headers
//
// Every answer has X-Request-Id, an id of this gateway's making: it names the request in the broker, in NATS and in
// logs, so it is never the caller's. A caller's own X-Request-Id or X-Client-Request-Id, if printable and at most 128
// bytes, comes back as X-Client-Request-Id.
//
// Every answer has X-Queue-Time-Ms, the time from acceptance until a worker took the request, rounded down; 0 if it never
// queued; the whole wait if it ended in the queue. A stream whose header had to be sent before a worker came (a
// keep-alive was due) has the time so far in the header, and the whole of it in a comment before its first event:
// ": queue-time-ms=1234".
//
// X-Request-Timeout is the caller's deadline, in seconds ("2", "0.5") or as a Go duration ("1500ms"), counted from the
// moment the head of the request has been read. It bounds the wait for the head of the answer: 504. An answer that has begun
// by then is not cut. It travels with the message, so that what has passed it never reaches a model.
//
// # Streams
//
// With "stream": true nothing is sent until the model's own status is known or the first keep-alive is due, so a refusal
// keeps its HTTP status. Whole events only are passed on; if the answer breaks off, the caller gets the whole events, then one error event
// (data: {"error":{…}}), and no [DONE].
//
// A model is read only as fast as its caller reads (see consumer/reply). A caller that takes nothing of its answer for
// Options.WriteTimeout is cut, and its request is cancelled; a slow caller that keeps reading gets the whole answer.
//
// # Asynchronous requests
//
// "Prefer: respond-async" is answered with 202, Location: /v1/requests/{id}, Preference-Applied, Retry-After and
//
//	{"id":"req_…","object":"request","state":"queued","model":"…","created_at":1767225600,"expires_at":1767229200}
//
// GET /v1/requests/{id} repeats that document with 202 while the state is queued or running. When the request has ended it
// answers as the synchronous call would have: done with the model's own status, headers and body; failed, cancelled (409)
// and expired (504) with the error, whose document also has "id" and "state". The header X-Request-State has the state in
// all cases. While it is queued the document also has, each if it is known, "position" (how many of its bucket come before
// it), "estimated_start" (RFC 3339) and "waiting_for" (the closed gate). DELETE cancels and answers 200 with the document; of a
// request that has ended it changes nothing and shows its state. Requests of another user do not exist (404).
package gateway
