package forward

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/penstockmq/penstock/consumer/reply"
)

// Router is the Downstream that chooses another by the request's model. It is immutable.
type Router struct {
	routes   map[string]Downstream
	fallback Downstream
}

// NewRouter returns a Router of models to downstreams. fallback takes every other model; nil refuses them with 404.
func NewRouter(routes map[string]Downstream, fallback Downstream) *Router {
	return &Router{routes: maps.Clone(routes), fallback: fallback}
}

// Models are the models with a route of their own, in order.
func (r *Router) Models() []string { return slices.Sorted(maps.Keys(r.routes)) }

// Forward implements [Downstream].
func (r *Router) Forward(ctx context.Context, req Request, sink Sink) Outcome {
	d := r.routes[req.Model]
	if d == nil {
		d = r.fallback
	}
	if d == nil {
		return refuse(sink, http.StatusNotFound, CodeNoModel, "no downstream is configured for this model")
	}
	return d.Forward(ctx, req, sink)
}

// refuse answers in OpenAI's error shape in the place of an upstream.
func refuse(sink Sink, status int, code, message string) Outcome {
	body, err := json.Marshal(map[string]any{"error": map[string]any{
		"message": message, "type": "invalid_request_error", "param": nil, "code": code,
	}})
	if err != nil {
		return unanswered(false, err)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if err := sink.Answer(status, header, body, reply.Usage{}); err != nil {
		return unanswered(false, err)
	}
	return Outcome{Kind: Refused, Status: status, Unsent: true}
}
