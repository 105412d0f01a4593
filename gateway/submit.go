package gateway

import (
	"time"

	"github.com/penstockmq/penstock/broker/lite"
)

// question is what a caller asks of a model.
type question struct {
	path        string // for the model's server; empty: its own address
	contentType string
	model       string
	stream      bool
	inputTokens int64 // of the prompt, an estimate
	maxTokens   int64 // of the answer; 0: the caller sets no limit
	body        []byte
}

// openAI answers the URLs whose model is in the body. streams says whether "stream" means anything there.
func (g *Gateway) openAI(path string, streams bool) handler {
	return func(c *call) error {
		body, err := c.body()
		if err != nil {
			return err
		}
		f, err := parseBody(body)
		if err != nil {
			return err
		}
		return g.submit(c, question{
			path: path, contentType: "application/json", model: f.model, stream: f.stream && streams,
			inputTokens: tokensOf(f.textBytes), maxTokens: f.maxTokens, body: body,
		})
	}
}

// enqueue answers /v1/enqueue/{model}: any body for any backend.
func (g *Gateway) enqueue(c *call) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	if len(body) == 0 {
		return refuse(errMissing, "", "the body is empty: a message needs at least one byte")
	}
	kind := c.r.Header.Get("Content-Type")
	if kind == "" {
		kind = "application/octet-stream"
	}
	if len(kind) > contentTypeMax {
		return refuse(errValue, "Content-Type", "Content-Type has more than %d bytes", contentTypeMax)
	}
	return g.submit(c, question{contentType: kind, model: c.r.PathValue("model"), inputTokens: tokensOf(int64(len(body))), body: body})
}

const contentTypeMax = 256

// submit checks what is common to all questions and goes one of two ways.
func (g *Gateway) submit(c *call, q question) error {
	if g.draining.Err() != nil {
		return after(errStopping, time.Second, "the gateway is stopping")
	}
	cell := lite.Cell{User: c.user, Model: q.model}
	name, err := g.bucket(cell)
	if err != nil {
		return err
	}
	async := prefersAsync(c.r.Header)
	rules := rulesOf(g.opts.Policy(), cell, name, c.key)
	timeout, err := parseTimeout(c.r.Header.Get(headerTimeout), g.timeout(rules.cell.Deadline, async), g.opts.MaxTimeout)
	if err != nil {
		return err
	}
	if !g.opts.NATS.IsConnected() {
		return after(errReplies, time.Second, "the reply service cannot be reached")
	}
	x := &exchange{
		g: g, c: c, q: q, cell: cell, name: name,
		deadline: c.arrived.Add(timeout),
		rules:    rules,
	}
	if !time.Now().Before(x.deadline) { // the body took all of it
		return errDeadline
	}
	if async {
		return x.async()
	}
	return x.sync()
}

// timeout is the time limit of a request that names none: the cell's own by policy, else the gateway's.
func (g *Gateway) timeout(ofCell time.Duration, async bool) time.Duration {
	switch {
	case ofCell > 0:
		return min(ofCell, g.opts.MaxTimeout)
	case async:
		return g.opts.AsyncTimeout
	}
	return g.opts.DefaultTimeout
}

// bucket checks user and model and names their bucket. Nothing is made here: a name that is refused leaves no trace.
func (g *Gateway) bucket(cell lite.Cell) (string, error) {
	if err := lite.CheckModel(cell.Model); err != nil {
		return "", refuse(errValue, "model", "%s", err)
	}
	if err := lite.CheckUser(cell.User); err != nil {
		return "", refuse(errValue, "user", "%s", err)
	}
	if err := g.models.check(cell.Model); err != nil {
		return "", err
	}
	name, err := lite.Encode(cell)
	if err != nil {
		return "", refuse(errValue, "model", "%s", err)
	}
	return name, nil
}
