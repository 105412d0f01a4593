// Package consumer is the pool: it receives the messages of all buckets and forwards each to its model when the limits of
// its cell allow it.
//
// Where the broker asks the policy's limits, as Penstock's does, what is delivered may go at once. With any other broker the
// pool asks them itself, by the broker's own code and for this process alone, and suspends what has to wait. Which of the two
// it is, is found out when it connects.
//
// It owns: the limits' accounts in the second case; the turn of one message from receive to verdict (decide, forward, settle); what
// becomes of a request whose model fails, whose caller leaves or whose deadline passes. The table of outcomes is at
// job.settle.
//
// One model or one user never gets all workers of the pool, see shares. The pool enforces this and not the broker: the broker
// does not know the sizes of the pools, a fixed part for each model would be used up by a few models that hang, and counting
// each row in the broker would cost every message. The price: a model at its share has some messages delivered more than once,
// at twice the rate at which it ends messages, and 200 times a second when it hangs with more than a thousand waiting buckets.
//
// It never waits for a limit with a worker, but for waits below what the broker can be told to hold a bucket: the bucket is
// suspended instead, and the worker takes another. It knows neither how messages travel (consumer/mq) nor how upstreams
// are spoken to (consumer/forward) nor how answers reach their caller (consumer/reply).
//
// cmd builds and runs it. A [Pool] runs once; its handlers run at the same time, and what they share is behind a lock of
// its own in each small type.
package consumer
