package admin

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Check is one thing that must work before this process can serve.
type Check struct {
	Name string
	// Run returns why it does not work now, or nil. It is asked at each request of
	// /readyz, bounded by a second.
	//
	// An error that wraps ErrDegraded means that the part works with a fault that an operator
	// must repair: /readyz reports degraded with status 200, since a restart or less traffic
	// would not help.
	Run func(context.Context) error
}

// ErrDegraded is wrapped by errors of checks that do not stop the process from serving.
var ErrDegraded = errors.New("degraded")

const checkMax = time.Second

// healthz says that the process runs and its HTTP server answers: an orchestrator
// restarts what does not. It checks nothing else: to restart a gateway because the
// broker is away helps nobody.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	s.writeJSON(w, r, http.StatusOK, map[string]string{"status": "ok"})
}

// readyz says whether the process should get work.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkMax)
	defer cancel()
	body := struct {
		Status string            `json:"status"`
		Checks map[string]string `json:"checks"`
	}{"ok", map[string]string{}}
	code := http.StatusOK
	for _, c := range s.checks {
		body.Checks[c.Name] = "ok"
		err := c.Run(ctx)
		if err != nil {
			body.Checks[c.Name] = err.Error()
		}
		switch {
		case err == nil:
		case !errors.Is(err, ErrDegraded):
			body.Status, code = "unavailable", http.StatusServiceUnavailable
		case code == http.StatusOK:
			body.Status = "degraded"
		}
	}
	s.writeJSON(w, r, code, body)
}
