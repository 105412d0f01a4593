// Package admin is the operations side of a process over HTTP: what an operator may
// see and change, metrics, and health.
//
// It owns the JSON of the operations API (/api/v1), the one table from errors to its
// statuses (status.go), the names of the broker's metrics (metrics.go) and the
// answers of /healthz and /readyz. It decides nothing: package broker does. It has no
// authentication of its own, so it belongs on a loopback or private address; a web
// page that an operator has open cannot reach it all the same (see [Server]).
//
// cmd/node runs a Server in every process. One without a broker has the policy, the
// load signals, /metrics and health, and answers no_broker to the rest. A Server is
// immutable after New and safe for concurrent use.
//
// # The API
//
// Bodies are JSON. Durations are Go's ("30s"), instants RFC 3339 in UTC. Errors are
//
//	{"error":{"code":"bucket_not_found","message":"…","field":"…"}}
//
// with a stable code; field is there when one field of the request is at fault. An
// unknown field of a body or parameter of a query is an error, not ignored.
//
//	GET    /api/v1/topics                                   all parent topics
//	POST   /api/v1/topics                                   create one
//	GET    /api/v1/topics/{topic}
//	DELETE /api/v1/topics/{topic}
//	GET    /api/v1/topics/{topic}/buckets?prefix=&after=&limit=
//	GET    /api/v1/topics/{topic}/buckets/{bucket}
//	POST   /api/v1/topics/{topic}/buckets/{bucket}/purge    settle all queued messages
//	GET    /api/v1/groups, POST, GET/DELETE /{group}  as topics
//	GET    /api/v1/groups/{group}/suspends?scope=&prefix=&limit=
//	PUT    /api/v1/groups/{group}/suspends                  hold a target until an instant, exactly
//	DELETE /api/v1/groups/{group}/suspends?scope=&name=     lift
//	GET    /api/v1/groups/{group}/dead-letters?after=&limit=
//	POST   /api/v1/groups/{group}/dead-letters/redrive      append them to their buckets again
//	GET    /api/v1/explain?topic=&group=&bucket=|request=   why a message waits
//	GET    /api/v1/record?topic=&for=                       what is done, as it happens: JSON lines
//	GET    /api/v1/policy                                   the policy in force in this process
//	GET    /api/v1/policy?user=&model=                      what it says of one cell
//	PUT    /api/v1/policy                                   put another one in force everywhere
//	GET    /api/v1/policy/versions?limit=                   its history
//	GET    /api/v1/policy/versions/{revision}
//	POST   /api/v1/policy/rollback                          put an earlier version in force again
//	POST   /api/v1/policy/check                             what another one would change
//	GET    /api/v1/policy/explain?user=&model=              each level that was considered for a cell
//	GET    /api/v1/signals?scope=&name=&limit=              load signals in force
//	DELETE /api/v1/signals?scope=&name=&source=             take one back
//	POST   /v1/alarms                                       Alertmanager's webhook, Amazon SNS
package admin
