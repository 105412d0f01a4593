package admin

import (
	"fmt"
	"net/http"
	"time"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/suspend/quota"
)

// Explanation says where a message stands and what it waits for.
type Explanation struct {
	Topic     string `json:"topic"`
	Group     string `json:"group"`
	Bucket    string `json:"bucket"`
	User      string `json:"user,omitempty"`
	Model     string `json:"model,omitempty"`
	Level     uint8  `json:"level"`
	RequestID string `json:"request_id,omitempty"`
	// Offset is the message's; absent when the bucket has nothing to deliver.
	Offset *int64 `json:"offset,omitempty"`
	// State is queued, out, held, limited, in_flight_full, ready or empty.
	State string `json:"state"`
	// Position counts the undelivered messages of the bucket before it.
	Position int `json:"position"`
	// Gate is what keeps it; absent when nothing does.
	Gate *Gate `json:"gate,omitempty"`
	// Suspend is the hold in force that ends last; absent when there is none.
	Suspend        *Suspend  `json:"suspend,omitempty"`
	Since          time.Time `json:"since,omitzero"`
	Until          time.Time `json:"until,omitzero"`
	Opens          string    `json:"opens,omitempty"`
	EstimatedStart time.Time `json:"estimated_start,omitzero"`
	// Limits are those that apply, with what is used of them now.
	Limits []quota.Line `json:"limits"`
	// PolicyNotice says that the policy in force differs from its source; absent when it does not.
	PolicyNotice string `json:"policy_notice,omitempty"`
}

// Gate is a limit that is used up.
type Gate struct {
	Scope string `json:"scope"`
	Name  string `json:"name,omitempty"`
	Limit string `json:"limit"`
}

func explanationOf(e broker.Explanation) Explanation {
	out := Explanation{
		Topic: e.Topic, Group: e.Group, Bucket: e.Bucket, User: e.Cell.User, Model: e.Cell.Model, Level: e.Level,
		RequestID: e.RequestID, State: e.State, Position: e.Position,
		Since: e.Since, Until: e.Until, Opens: e.Opens, EstimatedStart: e.EstimatedStart, Limits: e.Lines,
		PolicyNotice: e.PolicyNotice,
	}
	if e.Offset >= 0 {
		out.Offset = &e.Offset
	}
	if e.Limit != "" {
		out.Gate = &Gate{Scope: e.Gate.Scope.String(), Name: e.Gate.Name, Limit: e.Limit}
	}
	if !e.Hold.Until.IsZero() {
		hold := suspendOf(e.Hold)
		out.Suspend = &hold
	}
	if out.Limits == nil {
		out.Limits = []quota.Line{}
	}
	return out
}

// explain answers for ?bucket= (its next message) or ?request= (by request id), under ?topic= and ?group=.
func (s *Server) explain(r *http.Request) (int, any, error) {
	q, err := parameters(r, "topic", "group", "bucket", "request")
	if err != nil {
		return 0, nil, err
	}
	topic, name, request := q.Get("topic"), q.Get("bucket"), q.Get("request")
	if (name == "") == (request == "") {
		return 0, nil, inField("bucket", fmt.Errorf("%w: want exactly one of bucket and request", errParameter))
	}
	offset := int64(broker.NextMessage)
	if request != "" {
		found := false
		name, offset, found, err = s.broker.FindRequest(r.Context(), topic, request)
		switch {
		case err != nil:
			return 0, nil, err
		case !found:
			return 0, nil, inField("request", fmt.Errorf("%w: %q", broker.ErrNotQueued, request))
		}
	}
	e, err := s.broker.Explain(r.Context(), topic, q.Get("group"), name, offset)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, explanationOf(e), nil
}
