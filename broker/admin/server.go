package admin

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstockmq/penstock/broker"
)

// Options configure a Server.
type Options struct {
	// Broker is operated on. Nil in a process without one: its part of the API
	// answers no_broker.
	Broker *broker.Broker
	// Policy is the one that the process follows; nil when it has none.
	Policy *PolicySource
	// Recorder gets the broker's releases; nil when nothing can be recorded.
	Recorder *Recorder
	// Signals is where alarms go; nil in a process that takes none.
	Signals SignalStore
	// AlarmToken is what who posts alarms must show as a bearer token. Empty: nothing.
	// Messages of SNS show a signature instead.
	AlarmToken string
	// SNS says which messages of Amazon SNS are taken.
	SNS SNSOptions
	// Hosts are the additional names by which browsers may reach the port, beside addresses
	// and localhost.
	Hosts []string
	// Registry is what /metrics shows. Required; see [NewRegistry].
	Registry *prometheus.Registry
	// Checks decide on /readyz, in this order.
	Checks []Check
	// Logger receives internal errors; nil discards them.
	Logger *slog.Logger
}

// Server answers the operations API, /metrics and health.
//
// A web page on another site must not be able to use it through an operator's
// browser. Requests that a browser marks as coming from another origin are refused,
// a body must be declared as JSON (a form cannot be), and the Host must be an address,
// localhost or one of Hosts: a name that an attacker points at this port is none of them.
// These rules apply to all requests of a loopback connection. On other connections they apply
// to browsers only: monitoring and the command line may use any name. A post of alarms
// that must prove its origin may have any Host.
type Server struct {
	broker   *broker.Broker
	policy   *PolicySource
	recorder *Recorder
	alarms   alarmOptions
	checks   []Check
	log      *slog.Logger
	handler  http.Handler
	hosts    []string
	// reading holds a token while a request reads a policy.
	reading chan struct{}
}

// New returns the handler.
func New(opts Options) *Server {
	s := &Server{broker: opts.Broker, policy: opts.Policy, recorder: opts.Recorder, checks: opts.Checks, log: opts.Logger, hosts: slices.Clone(opts.Hosts)}
	s.reading = make(chan struct{}, 1)
	s.alarms = alarmOptions{signals: opts.Signals, token: opts.AlarmToken, sns: newSNSReceiver(opts.SNS), rates: &alarmRates{senders: map[string]*allowance{}}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	opts.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "penstock_alarms_refused_total", Help: "Posts of alarms refused because their sender posts too many.",
	}, s.alarms.rates.count))
	s.handler = s.guard(s.routes(opts.Registry))
	return s
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

func (s *Server) routes(registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelError),
		EnableOpenMetrics: true,
	}))
	mux.HandleFunc("GET /api/v1/record", s.record)
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)

	for pattern, f := range map[string]endpoint{
		"GET /api/v1/policy":                     s.getPolicy,
		"PUT /api/v1/policy":                     s.applyPolicy,
		"GET /api/v1/policy/versions":            s.listPolicyVersions,
		"GET /api/v1/policy/versions/{revision}": s.getPolicyVersion,
		"POST /api/v1/policy/rollback":           s.rollbackPolicy,
		"POST /api/v1/policy/check":              s.checkPolicy,
		"GET /api/v1/policy/explain":             s.explainPolicy,
		"GET /api/v1/signals":                    s.listSignals,
		"DELETE /api/v1/signals":                 s.clearSignal,
		"POST " + alarmsPath:                     s.postAlarms,
	} {
		mux.HandleFunc(pattern, s.api(f))
	}

	for pattern, f := range map[string]endpoint{
		"GET /api/v1/topics":                                 s.listTopics,
		"POST /api/v1/topics":                                s.createTopic,
		"GET /api/v1/topics/{topic}":                         s.getTopic,
		"DELETE /api/v1/topics/{topic}":                      s.deleteTopic,
		"GET /api/v1/topics/{topic}/buckets":                 s.listBuckets,
		"GET /api/v1/topics/{topic}/buckets/{bucket}":        s.getBucket,
		"POST /api/v1/topics/{topic}/buckets/{bucket}/purge": s.purgeBucket,
		"GET /api/v1/groups":                                 s.listGroups,
		"POST /api/v1/groups":                                s.createGroup,
		"GET /api/v1/groups/{group}":                         s.getGroup,
		"DELETE /api/v1/groups/{group}":                      s.deleteGroup,
		"GET /api/v1/groups/{group}/suspends":                s.listSuspends,
		"PUT /api/v1/groups/{group}/suspends":                s.setSuspend,
		"DELETE /api/v1/groups/{group}/suspends":             s.liftSuspend,
		"GET /api/v1/groups/{group}/dead-letters":            s.listDeadLetters,
		"POST /api/v1/groups/{group}/dead-letters/redrive":   s.redrive,
		"GET /api/v1/explain":                                s.explain,
	} {
		mux.HandleFunc(pattern, s.api(s.needsBroker(f)))
	}
	return s.inShape(mux)
}

// endpoint answers one route: a value to be written as JSON with its status, or an
// error of the table.
type endpoint func(r *http.Request) (int, any, error)

func (s *Server) api(f endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		code, v, err := f(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.writeJSON(w, r, code, v)
	}
}

func (s *Server) needsBroker(f endpoint) endpoint {
	return func(r *http.Request) (int, any, error) {
		if s.broker == nil {
			return 0, nil, errNoBroker
		}
		return f(r)
	}
}

// inShape gives the mux's own refusals, which are plain text, the API's shape.
func (s *Server) inShape(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refusal, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		// Of its two refusals, only 405 has an Allow header.
		probe := headerOnly{}
		refusal.ServeHTTP(probe, r)
		if allow := http.Header(probe).Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
			s.fail(w, r, errMethod)
			return
		}
		s.fail(w, r, errRoute)
	})
}

// headerOnly is a ResponseWriter that keeps the header and drops the rest.
type headerOnly http.Header

func (h headerOnly) Header() http.Header         { return http.Header(h) }
func (h headerOnly) Write(p []byte) (int, error) { return len(p), nil }
func (h headerOnly) WriteHeader(int)             {}

func (s *Server) guard(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, errForeign) }))
	next = cross.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if (onLoopback(r) || fromBrowser(r)) && !s.isOwnName(r.Host) && !s.alarms.proves(r) {
			s.fail(w, r, fmt.Errorf("%w, or by a name that is not among admin-hosts: %.256q", errForeign, r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func onLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// fromBrowser reports whether a browser sends the request, or a program that poses as one.
// Over plain HTTP, browsers omit the origin of a page in requests that only read, but all
// of them send their User-Agent.
func fromBrowser(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" || strings.HasPrefix(r.UserAgent(), "Mozilla/")
}

func (s *Server) isOwnName(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if slices.ContainsFunc(append([]string{"localhost"}, s.hosts...), func(own string) bool { return strings.EqualFold(own, host) }) {
		return true
	}
	_, err = netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}
