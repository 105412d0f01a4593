package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

func errorCode(body string) string {
	var doc struct {
		Error struct {
			Message, Type, Code string
		}
	}
	if json.Unmarshal([]byte(body), &doc) != nil {
		return ""
	}
	if doc.Error.Code != "" && (doc.Error.Message == "" || doc.Error.Type == "") {
		return "error without message or type"
	}
	return doc.Error.Code
}

// The whole table, spelt out: what a caller may branch on changes only on purpose.
func TestStatusTable(t *testing.T) {
	want := []struct {
		err        error
		http       int
		kind, code string
	}{
		{errNoKey, 401, "authentication_error", "missing_api_key"},
		{errUnknownKey, 401, "authentication_error", "invalid_api_key"},
		{errJSON, 400, "invalid_request_error", "invalid_json"},
		{errMissing, 400, "invalid_request_error", "missing_required_parameter"},
		{errValue, 400, "invalid_request_error", "invalid_value"},
		{errTimeoutValue, 400, "invalid_request_error", "invalid_request_timeout"},
		{errTooLarge, 413, "invalid_request_error", "request_too_large"},
		{errSlowBody, 408, "invalid_request_error", "request_body_timeout"},
		{errShare, 429, "rate_limit_error", "user_share_exceeded"},
		{errModelUnknown, 404, "invalid_request_error", "model_not_found"},
		{errRoute, 404, "invalid_request_error", "unknown_url"},
		{errMethod, 405, "invalid_request_error", "method_not_allowed"},
		{errNoRequest, 404, "invalid_request_error", "request_not_found"},
		{errResultGone, 410, "invalid_request_error", "result_gone"},
		{errCancelled, 409, "invalid_request_error", "request_cancelled"},
		{errRate, 429, "rate_limit_error", "rate_limit_exceeded"},
		{errQueueFull, 429, "rate_limit_error", "queue_full"},
		{errQueues, 429, "rate_limit_error", "too_many_queues"},
		{errDeadline, 504, "timeout_error", "request_timeout"},
		{errBusy, 503, "server_error", "gateway_overloaded"},
		{errStopping, 503, "server_error", "gateway_stopping"},
		{errBroker, 503, "server_error", "broker_unavailable"},
		{errStorage, 503, "server_error", "storage_full"},
		{errReplies, 503, "server_error", "reply_unavailable"},
		{errStoreFull, 503, "server_error", "async_store_full"},
		{errUserStore, 429, "rate_limit_error", "async_limit_exceeded"},
		{errNoAsync, 501, "invalid_request_error", "async_unavailable"},
		{errUpstream, 502, "server_error", "upstream_error"},
		{errStalled, 504, "timeout_error", "answer_stalled"},
		{errCallerGone, 499, "invalid_request_error", "client_closed_request"},
		{errInternal, 500, "server_error", "internal_error"},
	}
	if len(want) != len(statusTable) {
		t.Errorf("the table has %d rows, the test %d", len(statusTable), len(want))
	}
	codes := make(map[string]bool)
	for _, w := range want {
		got := statusOf(fmt.Errorf("operation: %w", w.err))
		if got.http != w.http || got.kind != w.kind || got.code != w.code {
			t.Errorf("%v: %d %s %s, want %d %s %s", w.err, got.http, got.kind, got.code, w.http, w.kind, w.code)
		}
		if codes[w.code] {
			t.Errorf("code %s stands for two conditions", w.code)
		}
		codes[w.code] = true
	}
	if got := statusOf(errors.New("anything")); got.code != "internal_error" {
		t.Errorf("an unknown error is %s", got.code)
	}
}

func TestSendConditions(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want error
	}{
		{&mq.CodeError{Code: 42900}, errQueueFull},
		{&mq.CodeError{Code: 42901}, errQueues},
		{&mq.CodeError{Code: 41301}, errTooLarge},
		{&mq.CodeError{Code: 43101}, errValue},
		{&mq.CodeError{Code: 40402}, errBroker},
		{fmt.Errorf("send: %w", &mq.CodeError{Code: 42900}), errQueueFull},
		{errors.New("connection refused"), errBroker},
	} {
		if got := sendCondition(tt.err); !errors.Is(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestFailureKeepsTheModelsWords(t *testing.T) {
	for _, tt := range []struct {
		f          reply.Failure
		http       int
		kind, code string
	}{
		{reply.Failure{}, 502, "server_error", "upstream_error"},
		{reply.Failure{Status: 200}, 502, "server_error", "upstream_error"},
		{reply.Failure{Status: 999}, 502, "server_error", "upstream_error"},
		{reply.Failure{Status: 503, Code: "overloaded"}, 503, "server_error", "overloaded"},
		{reply.Failure{Status: 429}, 429, "rate_limit_error", "upstream_error"},
		{reply.Failure{Status: 504}, 504, "timeout_error", "upstream_error"},
		{reply.Failure{Status: 400, Code: "c", Type: "their_type"}, 400, "their_type", "c"},
	} {
		got := failureStatus(tt.f)
		if got.http != tt.http || got.kind != tt.kind || got.code != tt.code {
			t.Errorf("%+v: %d %s %s", tt.f, got.http, got.kind, got.code)
		}
	}
}

// OpenAI's clients read all four keys; param is null, not missing.
func TestErrorShape(t *testing.T) {
	text := string(refusalOf(refuse(errJSON, "", "line\nend")).body())
	if want := `{"error":{"message":"line\nend","type":"invalid_request_error","param":null,"code":"invalid_json"}}`; text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	event := string(refusalOf(refuse(errJSON, "stream", "line\nend")).event())
	if strings.Count(event, "\n") != 2 || !strings.HasSuffix(event, "\n\n") || !strings.Contains(event, `"param":"stream"`) {
		t.Errorf("event %q", event)
	}
}

// What an inner error says may name hosts, so it stays inside.
func TestInnerErrorsStayInside(t *testing.T) {
	text := string(refusalOf(fmt.Errorf("dial 10.0.0.1: %w", errBroker)).body())
	if strings.Contains(text, "10.0.0.1") {
		t.Errorf("got %s", text)
	}
}

func TestRetrySeconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 1, time.Nanosecond: 1, time.Second: 1, time.Second + 1: 2, 90*time.Second - 1: 90,
	} {
		if got := retrySeconds(d); got != want {
			t.Errorf("%s: %d, want %d", d, got, want)
		}
	}
}
