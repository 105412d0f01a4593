// Package reply carries the answer of one request from the consumer that runs it to the gateway whose caller waits.
//
// It owns: the request's description in message properties ([Request]); the frames of a reply stream over NATS
// ([Writer] on the pool's side, [Inbox] and [Stream] on the gateway's); cancels of running requests ([Canceller] and
// [Cancels]); the records of asynchronous requests in JetStream ([Store]); the embedded NATS server ([Server]).
//
// It never decides what an answer is: status, headers and bytes come from consumer/forward, and the gateway turns them
// into HTTP. It never retries a request.
//
// The gateway and the pool call it. [Writer] belongs to one goroutine. [Stream.Next] belongs to one goroutine, its Close
// to any. Everything else is safe for concurrent use.
//
// # A reply stream
//
// The gateway writes the subject penstock.reply.<gateway>.<request> into the message; whoever runs the message publishes
// frames there. NATS delivers at most once, so each frame of the answer has a sequence number and the reader turns a
// gap into an error frame: bytes are missing loudly or not at all. A last frame that is lost with its connection shows no
// gap; for it the writer's side says afterwards that there was one ([Endings]).
//
//	Started                         optional, no sequence number: a worker has the request now
//	Head 0 · Chunk 1 … n · End n+1  an answer as it comes
//	Answer 0                        a whole answer in one message; the reader sees Head, Chunk, End
//	Error                           no (whole) answer will come
//
// Credit limits the bytes of an answer, from the caller to the upstream ([Writer.Control]): the request carries the first
// limit ([Request.Window]), and the reader raises the limit when its caller has read. A writer without credit waits and does
// not read from the upstream. The limit is an offset in the body, so a grant may be lost: the writer asks again with a probe,
// and the answer also tells it when the reader is gone. A reader of an older version grants nothing and gets the whole
// answer; a writer of an older version takes no credit, and the bounds of the [Inbox] end its stream. The windows of all
// streams of a gateway together follow the delay of its connection to NATS, so that the server never queues more for the
// gateway than it can write in time.
//
// A frame carries its delivery attempt. A consumer that crashed is followed by one with a higher attempt; a reader that
// has seen no Head follows the newer attempt, one that has seen bytes of the older reports an error, because two answers
// of a model do not fit together. A suspend repeats an attempt number, but only before a Head.
package reply
