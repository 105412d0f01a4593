package gateway

import (
	"errors"
	"net/http"

	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

// The conditions under which a request gets no answer of a model. Their texts are the messages callers read when there is
// nothing more precise to say.
var (
	errNoKey        = errors.New("no API key: send the header Authorization: Bearer KEY, or api-key: KEY")
	errUnknownKey   = errors.New("the API key is not known")
	errJSON         = errors.New("the body is not valid JSON")
	errMissing      = errors.New("a required field is missing")
	errValue        = errors.New("a field has a value that is not allowed")
	errTimeoutValue = errors.New("X-Request-Timeout is not allowed")
	errTooLarge     = errors.New("the body is too large")
	errSlowBody     = errors.New("the body did not arrive in time")
	errShare        = errors.New("the user has as much under way as one user may have")
	errModelUnknown = errors.New("no such model")
	errRoute        = errors.New("no such URL")
	errMethod       = errors.New("the URL does not have this method")
	errNoRequest    = errors.New("no such request")
	errResultGone   = errors.New("the result is not kept any more")
	errCancelled    = errors.New("the request was cancelled")
	errRate         = errors.New("rate limit exceeded")
	errQueueFull    = errors.New("the queue of this user and model is full")
	errQueues       = errors.New("this user has too many queues")
	errDeadline     = errors.New("the request did not finish within its time limit")
	errBusy         = errors.New("the gateway has as many requests as it can hold")
	errStopping     = errors.New("the gateway is stopping")
	errBroker       = errors.New("the broker cannot be reached")
	errStorage      = errors.New("the broker's disk is nearly full: it takes no new requests")
	errReplies      = errors.New("the reply service cannot be reached")
	errStoreFull    = errors.New("the store of asynchronous requests is full")
	errUserStore    = errors.New("too many asynchronous requests of this user are kept")
	errNoAsync      = errors.New("asynchronous requests are not enabled on this gateway")
	errUpstream     = errors.New("the model gave no usable answer")
	errStalled      = errors.New("the answer began and then nothing came for too long")
	errInternal     = errors.New("internal error")
	errCallerGone   = errors.New("the caller went away")
)

// Types of errors, in OpenAI's words where it has one.
const (
	typeInvalid = "invalid_request_error"
	typeAuth    = "authentication_error"
	typeRate    = "rate_limit_error"
	typeTimeout = "timeout_error"
	typeServer  = "server_error"
)

// status is what a caller sees of a condition. Codes are stable: callers branch on them.
type status struct {
	condition error
	http      int
	kind      string
	code      string
}

// statusTable maps each condition to its HTTP status, type and code. It is never changed. The first row that errors.Is
// finds wins; the last row is for everything else.
var statusTable = [...]status{
	{errNoKey, http.StatusUnauthorized, typeAuth, "missing_api_key"},
	{errUnknownKey, http.StatusUnauthorized, typeAuth, "invalid_api_key"},
	{errJSON, http.StatusBadRequest, typeInvalid, "invalid_json"},
	{errMissing, http.StatusBadRequest, typeInvalid, "missing_required_parameter"},
	{errValue, http.StatusBadRequest, typeInvalid, "invalid_value"},
	{errTimeoutValue, http.StatusBadRequest, typeInvalid, "invalid_request_timeout"},
	{errTooLarge, http.StatusRequestEntityTooLarge, typeInvalid, "request_too_large"},
	{errSlowBody, http.StatusRequestTimeout, typeInvalid, "request_body_timeout"},
	{errShare, http.StatusTooManyRequests, typeRate, "user_share_exceeded"},
	{errModelUnknown, http.StatusNotFound, typeInvalid, "model_not_found"},
	{errRoute, http.StatusNotFound, typeInvalid, "unknown_url"},
	{errMethod, http.StatusMethodNotAllowed, typeInvalid, "method_not_allowed"},
	{errNoRequest, http.StatusNotFound, typeInvalid, "request_not_found"},
	{errResultGone, http.StatusGone, typeInvalid, "result_gone"},
	{errCancelled, http.StatusConflict, typeInvalid, "request_cancelled"},
	{errRate, http.StatusTooManyRequests, typeRate, "rate_limit_exceeded"},
	{errQueueFull, http.StatusTooManyRequests, typeRate, "queue_full"},
	{errQueues, http.StatusTooManyRequests, typeRate, "too_many_queues"},
	{errDeadline, http.StatusGatewayTimeout, typeTimeout, "request_timeout"},
	{errBusy, http.StatusServiceUnavailable, typeServer, "gateway_overloaded"},
	{errStopping, http.StatusServiceUnavailable, typeServer, "gateway_stopping"},
	{errBroker, http.StatusServiceUnavailable, typeServer, "broker_unavailable"},
	{errStorage, http.StatusServiceUnavailable, typeServer, "storage_full"},
	{errReplies, http.StatusServiceUnavailable, typeServer, "reply_unavailable"},
	{errStoreFull, http.StatusServiceUnavailable, typeServer, "async_store_full"},
	{errUserStore, http.StatusTooManyRequests, typeRate, "async_limit_exceeded"},
	{errNoAsync, http.StatusNotImplemented, typeInvalid, "async_unavailable"},
	{errUpstream, http.StatusBadGateway, typeServer, "upstream_error"},
	{errStalled, http.StatusGatewayTimeout, typeTimeout, "answer_stalled"},
	{errCallerGone, statusCallerGone, typeInvalid, "client_closed_request"}, // counted, never sent
	{errInternal, http.StatusInternalServerError, typeServer, "internal_error"},
}

// statusCallerGone is nginx's number for a caller that closed its connection; it appears in metrics only.
const statusCallerGone = 499

// statusOf finds err's row.
func statusOf(err error) status {
	for _, row := range &statusTable {
		if errors.Is(err, row.condition) {
			return row
		}
	}
	return statusTable[len(statusTable)-1]
}

// failureStatus is the row of a failure that came over the reply stream. It keeps the words of the model or pool;
// what is missing or makes no sense as an HTTP error becomes that of errUpstream.
func failureStatus(f reply.Failure) status {
	row := statusOf(errUpstream)
	if f.Status >= 400 && f.Status <= 599 {
		row.http = f.Status
		row.kind = typeOfStatus(f.Status)
	}
	if f.Code != "" {
		row.code = f.Code
	}
	if f.Type != "" {
		row.kind = f.Type
	}
	return row
}

func typeOfStatus(code int) string {
	switch {
	case code == http.StatusTooManyRequests:
		return typeRate
	case code == http.StatusGatewayTimeout, code == http.StatusRequestTimeout:
		return typeTimeout
	case code < 500:
		return typeInvalid
	default:
		return typeServer
	}
}

// RocketMQ codes of a refused send that mean something else than "try later"; see its definition.proto.
const (
	codeBodyTooLarge       = 41301
	codeTooManyRequests    = 42900 // the bucket is full, in messages or bytes, or the broker is busy
	codeLiteQuota          = 42901 // the user or the parent topic has its maximum of buckets
	codePropertiesTooLarge = 43101
	codeDiskFull           = 50401 // MASTER_PERSISTENCE_TIMEOUT
)

// sendCondition maps a producer's error to a condition. Everything but a clear refusal is errBroker: the caller may try again.
func sendCondition(err error) error {
	var refused *mq.CodeError
	if !errors.As(err, &refused) {
		return errBroker
	}
	switch refused.Code {
	case codeTooManyRequests:
		return errQueueFull
	case codeLiteQuota:
		return errQueues
	case codeBodyTooLarge:
		return errTooLarge
	case codeDiskFull:
		return errStorage
	case codePropertiesTooLarge:
		return errValue
	default:
		return errBroker
	}
}
