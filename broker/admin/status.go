package admin

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"

	"github.com/penstockmq/penstock/broker"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/live"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/signal"
)

// Conditions that only this package finds.
var (
	errRoute     = errors.New("no such URL")
	errMethod    = errors.New("the URL does not have this method")
	errBody      = errors.New("the body is not what this URL takes")
	errMediaType = errors.New("the body must be application/json")
	errParameter = errors.New("a parameter is not allowed")
	errNoBroker  = errors.New("this process runs no broker: ask the admin address of the one that does")
	errNoPolicy  = errors.New("this process has no policy")
	errForeign   = errors.New("the request comes from a web page of another origin")
)

// status is what a client of the API sees of a condition. Codes are stable.
type status struct {
	condition error
	http      int
	code      string
}

// statusTable maps each condition to its status and code. The first row that
// errors.Is finds wins; everything else is internal.
var statusTable = [...]status{
	{errRoute, http.StatusNotFound, "route_not_found"},
	{errMethod, http.StatusMethodNotAllowed, "method_not_allowed"},
	{errBody, http.StatusBadRequest, "invalid_body"},
	{errMediaType, http.StatusUnsupportedMediaType, "invalid_media_type"},
	{errParameter, http.StatusBadRequest, "invalid_parameter"},
	{errNoBroker, http.StatusNotFound, "no_broker"},
	{errNoPolicy, http.StatusNotFound, "no_policy"},
	{errForeign, http.StatusForbidden, "foreign_origin"},
	{errPolicyFile, http.StatusConflict, "policy_follows_file"},
	{errPolicyNone, http.StatusNotFound, "no_policy_store"},

	{policy.ErrInvalid, http.StatusBadRequest, "invalid_policy"},
	{live.ErrConflict, http.StatusConflict, "policy_conflict"},
	{live.ErrNoVersion, http.StatusNotFound, "version_not_found"},
	{live.ErrField, http.StatusBadRequest, "invalid_change"},
	{live.ErrDisconnected, http.StatusServiceUnavailable, "nats_unavailable"},
	{live.ErrTooMany, http.StatusServiceUnavailable, "too_many_signals"},
	{errAlarmRate, http.StatusServiceUnavailable, "too_many_alarms"},
	{errNoSignals, http.StatusNotFound, "no_signals"},
	{errToken, http.StatusUnauthorized, "unauthorized"},
	{errTooLarge, http.StatusRequestEntityTooLarge, "body_too_large"},
	{errTopicARN, http.StatusForbidden, "topic_not_allowed"},
	{errUpstream, http.StatusBadGateway, "sns_unavailable"},
	{signal.ErrAlert, http.StatusBadRequest, "invalid_alarm"},
	{signal.ErrSignature, http.StatusForbidden, "invalid_signature"},
	{broker.ErrNotQueued, http.StatusNotFound, "not_queued"},

	{broker.ErrTopicNotFound, http.StatusNotFound, "topic_not_found"},
	{broker.ErrGroupNotFound, http.StatusNotFound, "group_not_found"},
	{broker.ErrBucketNotFound, http.StatusNotFound, "bucket_not_found"},
	{broker.ErrExists, http.StatusConflict, "already_exists"},
	{broker.ErrInUse, http.StatusConflict, "in_use"},
	{broker.ErrGroupBound, http.StatusConflict, "group_bound"},
	{broker.ErrBucketFull, http.StatusConflict, "bucket_full"},
	{broker.ErrBucketBytes, http.StatusConflict, "bucket_full"},
	{broker.ErrTooManyBuckets, http.StatusConflict, "too_many_buckets"},
	{broker.ErrTooManyUserBuckets, http.StatusConflict, "too_many_user_buckets"},
	{broker.ErrDiskFull, http.StatusInsufficientStorage, "disk_full"},
	{broker.ErrBusy, http.StatusServiceUnavailable, "busy"},
	{broker.ErrClosed, http.StatusServiceUnavailable, "closed"},

	{suspend.ErrNegative, http.StatusBadRequest, "invalid_duration"},
	{suspend.ErrTooLong, http.StatusBadRequest, "invalid_duration"},
	{suspend.ErrScope, http.StatusBadRequest, "invalid_scope"},
	{suspend.ErrTarget, http.StatusBadRequest, "invalid_target"},
	{lite.ErrTopic, http.StatusBadRequest, "invalid_topic"},
	{lite.ErrGroup, http.StatusBadRequest, "invalid_group"},
	{lite.ErrName, http.StatusBadRequest, "invalid_bucket"},
	{broker.ErrInvalidArgument, http.StatusBadRequest, "invalid_argument"},

	{context.DeadlineExceeded, http.StatusGatewayTimeout, "timeout"},
	{context.Canceled, statusClientClosed, "cancelled"},
}

// statusClientClosed is nginx's: nobody reads it, the access log of a proxy does.
const statusClientClosed = 499

var internal = status{nil, http.StatusInternalServerError, "internal"}

func statusOf(err error) status {
	for _, s := range statusTable {
		if errors.Is(err, s.condition) {
			return s
		}
	}
	return internal
}

// fieldError names the field of the request that is at fault.
type fieldError struct {
	field string
	err   error
}

func (e *fieldError) Error() string { return e.field + ": " + e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

func inField(field string, err error) error {
	if err == nil {
		return nil
	}
	return &fieldError{field, err}
}

// apiError is the body of every refusal.
type apiError struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Field   string `json:"field,omitempty"`
	} `json:"error"`
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	st := statusOf(err)
	var body apiError
	body.Error.Code = st.code
	body.Error.Message = err.Error()
	if f, ok := errors.AsType[*fieldError](err); ok {
		body.Error.Field = f.field
	}
	if again, ok := errors.AsType[*retryError](err); ok {
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, int64(math.Ceil(again.after.Seconds()))), 10))
	}
	if st == internal {
		// What is not in the table may say things about the machine: the log has them.
		s.log.Error("admin request failed", "method", r.Method, "route", r.Pattern, "error", err)
		body.Error.Message = "internal error, see the server's log"
	}
	s.writeJSON(w, r, st.http, body)
}

func (s *Server) writeJSON(w http.ResponseWriter, r *http.Request, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		s.log.Error("encode admin answer", "route", r.Pattern, "error", err)
		http.Error(w, `{"error":{"code":"internal","message":"internal error, see the server's log"}}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	if _, err := w.Write(append(b, '\n')); err != nil {
		s.log.Debug("admin client went away", "route", r.Pattern, "error", err)
	}
}
