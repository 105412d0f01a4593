package admin

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/broker"
)

// DeadLetter is a message that a group gave up. Its body is not shown: it is the
// user's.
type DeadLetter struct {
	Sequence  uint64    `json:"sequence"`
	Topic     string    `json:"topic"`
	Bucket    string    `json:"bucket"`
	Offset    uint64    `json:"offset"`
	MessageID string    `json:"message_id"`
	Attempts  int       `json:"attempts"`
	Reason    string    `json:"reason"`
	At        time.Time `json:"at"`
	BodyBytes int       `json:"body_bytes"`
}

// DeadLetters is one page, the oldest first. Next is the after of the next page, 0 on
// the last.
type DeadLetters struct {
	DeadLetters []DeadLetter `json:"dead_letters"`
	Next        uint64       `json:"next,omitempty"`
}

// Redrive names the dead letters to send again.
type Redrive struct {
	Sequences []uint64 `json:"sequences"`
}

// Redriven counts the dead letters that were sent again, without those that were gone
// already. Unreadable counts those that stay because their records are damaged on disk.
type Redriven struct {
	Redriven   int `json:"redriven"`
	Unreadable int `json:"unreadable,omitempty"`
}

// maxRedrive bounds one request: each dead letter waits for the disk.
const maxRedrive = 1000

func deadLetterOf(d broker.DeadLetter) DeadLetter {
	if d.Unreadable != nil {
		return DeadLetter{Sequence: d.Seq, Reason: "the record of this dead letter is damaged: " + d.Unreadable.Error()}
	}
	return DeadLetter{
		Sequence: d.Seq, Topic: d.Topic, Bucket: d.Message.Lite, Offset: d.Offset, MessageID: d.Message.ID,
		Attempts: d.Attempts, Reason: d.Reason, At: d.At.UTC(), BodyBytes: len(d.Message.Body),
	}
}

func (s *Server) listDeadLetters(r *http.Request) (int, any, error) {
	q, err := parameters(r, "after", "limit")
	if err != nil {
		return 0, nil, err
	}
	limit, err := pageSize(q)
	if err != nil {
		return 0, nil, err
	}
	var after uint64
	if text := q.Get("after"); text != "" {
		if after, err = strconv.ParseUint(text, 10, 63); err != nil {
			return 0, nil, inField("after", fmt.Errorf("%w: %q: want a sequence", errParameter, text))
		}
	}
	found, err := s.broker.DeadLetters(r.Context(), r.PathValue("group"), after+1, limit+1)
	if err != nil {
		return 0, nil, err
	}
	out := DeadLetters{DeadLetters: []DeadLetter{}}
	if len(found) > limit {
		found = found[:limit]
		out.Next = found[limit-1].Seq
	}
	for _, d := range found {
		out.DeadLetters = append(out.DeadLetters, deadLetterOf(d))
	}
	return http.StatusOK, out, nil
}

func (s *Server) redrive(r *http.Request) (int, any, error) {
	var body Redrive
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	if n := len(body.Sequences); n < 1 || n > maxRedrive {
		return 0, nil, inField("sequences", fmt.Errorf("%w: %d of them: want 1 to %d", errBody, n, maxRedrive))
	}
	done, err := s.broker.Redrive(r.Context(), r.PathValue("group"), body.Sequences)
	return http.StatusOK, Redriven{done.Sent, done.Unreadable}, err
}
