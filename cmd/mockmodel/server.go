package mockmodel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options configures a [Server].
type Options struct {
	// Models it has; a request for another gets 404. None means any.
	Models []string
	// Behaviour of every call; a zero Behaviour means [DefaultBehaviour].
	Behaviour Behaviour
	// Capacity is how many calls it works on at once; more get BusyStatus. 0 means no bound.
	Capacity int
	// BusyStatus is 429 or 503. 0 means 429.
	BusyStatus int
	// Key is the API key it asks for. Empty asks for none.
	Key string
	// History is how many calls are kept. 0 means 10,000.
	History int
	// BodyBytes bounds a request's body. 0 means 32 MiB.
	BodyBytes int64
}

// Server is the mock model. It is an http.Handler.
type Server struct {
	opts     Options
	mux      *http.ServeMux
	recorder *recorder

	mu        sync.Mutex // guards the following fields
	behaviour Behaviour
	rules     []*Rule // Times counts down; a rule that is used up is removed
}

// New returns the server of opts, or all that is wrong with them.
func New(opts Options) (*Server, error) {
	if opts.Behaviour == (Behaviour{}) {
		opts.Behaviour = DefaultBehaviour()
	}
	if opts.BusyStatus == 0 {
		opts.BusyStatus = http.StatusTooManyRequests
	}
	if opts.History == 0 {
		opts.History = 10_000
	}
	if opts.BodyBytes == 0 {
		opts.BodyBytes = 32 << 20
	}
	errs := []error{opts.Behaviour.Validate()}
	if opts.BusyStatus != http.StatusTooManyRequests && opts.BusyStatus != http.StatusServiceUnavailable {
		errs = append(errs, errors.New("busy_status: want 429 or 503"))
	}
	if opts.Capacity < 0 || opts.History < 0 || opts.BodyBytes < 0 {
		errs = append(errs, errors.New("capacity, history, body_bytes: want 0 or more"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("mock model: %w", err)
	}
	s := &Server{opts: opts, recorder: newRecorder(opts.History), behaviour: opts.Behaviour}
	s.mux = s.routes()
	return s, nil
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.call((*exchange).chat, true))
	mux.HandleFunc("POST /v1/completions", s.call((*exchange).completion, true))
	mux.HandleFunc("POST /v1/embeddings", s.call((*exchange).embeddings, true))
	mux.HandleFunc("POST /", s.call((*exchange).echo, false))
	mux.HandleFunc("GET /v1/models", s.models)
	s.controlRoutes(mux)
	return mux
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Serve answers on l until ctx is done, then closes every connection: a model server that is killed does the same.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // what it returns, Serve returns as well
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve mock model: %w", err)
	}
	return nil
}

// Stats returns the counters.
func (s *Server) Stats() Stats { return s.recorder.snapshot() }

// Calls returns the calls kept whose number is above after, in order.
func (s *Server) Calls(after int64) []Call { return s.recorder.list(after) }

// Wait returns when ok holds for the counters, or with ctx's error.
func (s *Server) Wait(ctx context.Context, ok func(Stats) bool) error {
	return s.recorder.wait(ctx, ok)
}

// AddRule adds r behind the rules there are: the first that matches applies.
func (s *Server) AddRule(r Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, &r)
}

// ClearRules removes all rules.
func (s *Server) ClearRules() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// SetBehaviour changes what calls meet from now on, or returns what is wrong with b.
func (s *Server) SetBehaviour(b Behaviour) error {
	if err := b.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behaviour = b
	return nil
}

// Behaviour returns what calls meet that no rule matches.
func (s *Server) Behaviour() Behaviour {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.behaviour
}

// Reset forgets calls, counters and rules.
func (s *Server) Reset() {
	s.ClearRules()
	s.recorder.reset()
}

// behaviourOf is what c meets; a rule with Times is used up by it.
func (s *Server) behaviourOf(c *Call, body []byte) Behaviour {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.behaviour
	for i, r := range s.rules {
		if !r.matches(c, body) {
			continue
		}
		if r.Apply != nil {
			r.Apply(&b)
		}
		if r.Times > 0 {
			if r.Times--; r.Times == 0 {
				s.rules = slices.Delete(s.rules, i, i+1)
			}
		}
		break
	}
	return b
}

// exchange is one call under way.
type exchange struct {
	s    *Server
	w    http.ResponseWriter
	r    *http.Request
	call *Call
	body []byte
	ask  ask
	how  Behaviour
}

// ask is what the server reads of a request.
type ask struct {
	Model               string          `json:"model"`
	User                string          `json:"user"`
	Stream              bool            `json:"stream"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Input               json.RawMessage `json:"input"`
	EncodingFormat      string          `json:"encoding_format"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// call wraps an endpoint: it reads and records the request, refuses what is over capacity, and applies what every
// endpoint has in common.
func (s *Server) call(answer func(*exchange) State, wantsJSON bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opts.BodyBytes))
		if err != nil {
			writeError(w, http.StatusBadRequest, "invalid_request_error", "unreadable_body", "the body could not be read")
			return
		}
		x := &exchange{s: s, w: w, r: r, body: body}
		malformed := json.Unmarshal(body, &x.ask) != nil && wantsJSON
		sum := sha256.Sum256(body)
		x.call = &Call{
			Path: r.URL.Path, Model: x.ask.Model, User: r.Header.Get("X-Penstock-User"),
			RequestID: r.Header.Get("X-Request-Id"), Stream: x.ask.Stream,
			BodyBytes: len(body), BodyHash: hex.EncodeToString(sum[:]), Began: began,
		}
		if x.call.User == "" {
			x.call.User = x.ask.User
		}
		full := s.recorder.begin(x.call, s.opts.Capacity)
		state := StateFaulted // if the answer resets the connection by the panic that net/http has for it
		defer func() { s.recorder.end(x.call, state, full) }()
		state = x.run(answer, malformed, full)
	}
}

func (x *exchange) run(answer func(*exchange) State, malformed, full bool) State {
	var err error
	if x.how, err = x.s.behaviourOf(x.call, x.body).withHeaders(x.r.Header); err != nil {
		return x.refuse(http.StatusBadRequest, "bad_mock_header", err.Error())
	}
	switch {
	case x.s.opts.Key != "" && x.r.Header.Get("Authorization") != "Bearer "+x.s.opts.Key:
		return x.refuse(http.StatusUnauthorized, "invalid_api_key", "the API key is not the one configured")
	case full:
		x.retryAfter()
		return x.refuse(x.s.opts.BusyStatus, "server_busy", "the model is at its capacity")
	case malformed:
		return x.refuse(http.StatusBadRequest, "invalid_json", "the body is not a JSON object")
	case len(x.s.opts.Models) > 0 && x.ask.Model != "" && !slices.Contains(x.s.opts.Models, x.ask.Model):
		return x.refuse(http.StatusNotFound, "model_not_found", "there is no such model")
	}
	if !x.pass(x.how.Delay) {
		return StateAborted
	}
	switch x.how.Fault {
	case FaultStatus:
		if x.how.Status == http.StatusTooManyRequests || x.how.Status == http.StatusServiceUnavailable {
			x.retryAfter()
		}
		return x.refuse(x.how.Status, "mock_fault", "a fault on demand")
	case FaultRefuse:
		x.reset()
		return StateFaulted
	case FaultHang:
		<-x.r.Context().Done()
		return StateAborted
	case FaultNone, FaultReset, FaultNoEnd, FaultBroken, FaultBareError, FaultErrorEvent:
	}
	return answer(x)
}

// pass lets d go by; false if the caller left meanwhile.
func (x *exchange) pass(d Duration) bool {
	if d <= 0 {
		return x.r.Context().Err() == nil
	}
	t := time.NewTimer(time.Duration(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

// reset breaks the connection off as a crashed server does. What was written before is sent first.
func (x *exchange) reset() {
	conn, buffered, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2 and test recorders: net/http's own way to break off
	}
	_ = buffered.Flush() // the connection may be gone already, which is what is wanted
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // RST instead of FIN
	}
	_ = conn.Close()
}
