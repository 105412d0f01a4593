package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// fault is a condition with what is known about this instance of it.
type fault struct {
	condition error         // a row of statusTable
	param     string        // the field or header at fault, if one is
	message   string        // what the caller reads; empty means the condition's own text
	retry     time.Duration // when to try again; 0 means nothing is known, or trying again does not help
	quota     quota         // the limit that refuses; zero: none does
}

func (f *fault) Error() string {
	if f.message != "" {
		return f.message
	}
	return f.condition.Error()
}

func (f *fault) Unwrap() error { return f.condition }

// refuse makes a fault about param, which may be empty.
func refuse(condition error, param, format string, args ...any) *fault {
	return &fault{condition: condition, param: param, message: fmt.Sprintf(format, args...)}
}

// after makes a fault that is worth trying again after d.
func after(condition error, d time.Duration, format string, args ...any) *fault {
	return &fault{condition: condition, message: fmt.Sprintf(format, args...), retry: d}
}

// apiError is OpenAI's error object. Its four keys are always there; param is null when no field is at fault.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// errorDocument is the body of every error answer. ID and State are set for a request that was asked about.
type errorDocument struct {
	ID    string   `json:"id,omitempty"`
	State string   `json:"state,omitempty"`
	Error apiError `json:"error"`
}

// refusal is a fault as it goes out.
type refusal struct {
	status
	document errorDocument
	retry    time.Duration
	quota    quota
}

// refusalOf renders any error. The text of an error that is neither a fault, a failure nor a bare condition stays inside:
// it may name hosts and paths.
func refusalOf(err error) refusal {
	if failed, ok := errors.AsType[reply.Failure](err); ok {
		row := failureStatus(failed)
		return refusal{status: row, document: document(row, "", failed.Message)}
	}
	row := statusOf(err)
	if f, ok := errors.AsType[*fault](err); ok {
		return refusal{status: row, document: document(row, f.param, f.message), retry: f.retry, quota: f.quota}
	}
	return refusal{status: row, document: document(row, "", "")}
}

func document(row status, param, message string) errorDocument {
	if message == "" {
		message = row.condition.Error()
	}
	e := apiError{Message: message, Type: row.kind, Code: row.code}
	if param != "" {
		e.Param = &param
	}
	return errorDocument{Error: e}
}

// body returns the document as JSON.
func (r refusal) body() []byte {
	text, err := json.Marshal(r.document)
	if err != nil { // strings only: cannot happen
		return []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal_error"}}`)
	}
	return text
}

// event returns the document as one server-sent event.
func (r refusal) event() []byte {
	text := r.body() // one line: json.Marshal escapes line ends
	return append(append([]byte("data: "), text...), "\n\n"...)
}

// setRetryAfter writes d rounded up to whole seconds, at least 1: a caller that comes back then is not early.
func setRetryAfter(h http.Header, d time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(retrySeconds(d), 10))
}

func retrySeconds(d time.Duration) int64 {
	return max(1, int64(math.Ceil(d.Seconds())))
}
