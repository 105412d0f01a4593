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
// One model or one user never gets all of its workers, see shares. Decided: the pool enforces that and not the broker, which
// does not know how large the pools are that come and go; a part for each model that is fixed in the broker would be used up by a few
// models that hang, and a count of each row there would cost every message. The price is that a model at its share has some messages
// delivered more than once, at twice the rate at which it ends them, and 200 a second when it hangs with more than a
// thousand buckets waiting.
//
// It never waits for a limit with a worker, but for waits below what the broker can be told to hold a bucket: the bucket is
// suspended instead, and the worker takes another. It knows neither how messages travel (consumer/mq) nor how upstreams
// are spoken to (consumer/forward) nor how answers reach their caller (consumer/reply).
//
// cmd builds and runs it. A [Pool] runs once; its handlers run at the same time, and what they share is behind a lock of
// its own in each small type.
package consumer
