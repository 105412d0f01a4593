// Package mockmodel is an OpenAI-compatible model server that computes nothing: demonstrations, benchmarks and tests put it
// where GPUs would be.
//
// It owns: answers that depend on the request alone ([Behaviour]: how long they take, how many tokens they have); a
// capacity beyond which it answers 429 or 503; faults on demand; the record of every call ([Call], [Stats]).
//
// It never checks that a request makes sense beyond what it needs to answer. Everything is safe for concurrent use.
//
// # API
//
//	POST /v1/chat/completions, /v1/completions   stream or not, with usage
//	POST /v1/embeddings                          float or base64
//	GET  /v1/models
//	POST anything else                           {"object":"echo","bytes":…,"sha256":…}
//
// A call's user is the header X-Penstock-User, else the body's "user".
//
// What a call meets is, later before earlier: the server's Behaviour, the first [Rule] that matches, and the call's own
// headers X-Mock-Delay, X-Mock-First-Token, X-Mock-Interval, X-Mock-Tokens, X-Mock-Fault, X-Mock-Fault-After,
// X-Mock-Status, X-Mock-Retry-After.
//
// # Control
//
//	GET    /control/stats           Stats
//	GET    /control/calls?after=N   Calls with a number above N
//	GET    /control/behaviour       Behaviour
//	PATCH  /control/behaviour       sets the fields given
//	POST   /control/rules           {"model","user","contains","times","set":{Behaviour fields}}: adds a rule
//	DELETE /control/rules           removes all
//	POST   /control/reset           forgets calls, counters and rules
//
// Durations are strings such as "50ms". An unknown field is refused.
package mockmodel
