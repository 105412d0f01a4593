// Package gateway is the HTTP front: it turns a caller's HTTP request into a message in the bucket of its user and model,
// and the reply stream of that message into the HTTP answer.
//
// It owns: who the caller is (API keys, see [Keys]); whether a request may enter (the fixed window and the depth caps of
// the policy, see admission); the way of a request through its waiting time ([Gateway]); the one table of errors
// (status.go).
//
// It never calls a model, never retries one, and never holds a request's place in memory only: what it has answered with
// 202, and what it waits for, is durable in the broker. It does not read or log bodies beyond the fields "model" and
// "stream". The tenant is the owner of the API key; no header, query or body field can choose another.
//
// cmd wires it to a producer (consumer/mq), a NATS connection (consumer/reply) and a policy (suspend/policy).
//
// Concurrency: a [Gateway] serves any number of requests at once. Each request is one goroutine of net/http, which does
// everything for it and ends with it: there is no goroutine in the background but those of Run and of the key file.
//
// # Life of a request
//
//	identify ─▶ read and check ─▶ admit ─▶ open reply stream ─▶ send ─▶ wait ─▶ answer
//	   401          400 404 413      429           503         429 503    504
//
// From "send" on a request is in the broker, and whatever ends the wait before the answer (the caller leaves, its
// deadline passes, the gateway stops) takes it out again: recalled from its bucket while it is queued, cancelled over
// NATS when a worker has it.
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
// # Asynchronous requests
//
// "Prefer: respond-async" is answered with 202, Location: /v1/requests/{id}, Preference-Applied, Retry-After and
//
//	{"id":"req_…","object":"request","state":"queued","model":"…","created_at":1767225600,"expires_at":1767229200}
//
// GET /v1/requests/{id} repeats that document with 202 while the state is queued or running. When the request has ended it
// answers as the synchronous call would have: done with the model's own status, headers and body; failed, cancelled (409)
// and expired (504) with the error, whose document also has "id" and "state". The header X-Request-State has the state in
// all cases. DELETE cancels and answers 200 with the document; of a request that has ended it changes nothing and shows its state.
// Requests of another user do not exist (404).
package gateway
