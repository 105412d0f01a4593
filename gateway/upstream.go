package gateway

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/penstockmq/penstock/consumer/reply"
)

// notPassed are header fields of a model's answer that mean nothing behind a queue, or that are ours to set. Sorted.
var notPassed = [...]string{
	"Connection", "Content-Length", "Date", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
	headerRateLimit, headerRateLimitPolicy, "Server", "Set-Cookie", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"X-Client-Request-Id", headerQueueTime, headerRequestID, headerRequestState,
}

func isPassed(name string) bool {
	_, found := slices.BinarySearch(notPassed[:], textproto.CanonicalMIMEHeaderKey(name))
	return !found
}

// copyHeader copies what may be passed on. An answer without a type is bytes: net/http would guess one.
func copyHeader(to, from http.Header) {
	for name, values := range from {
		if isPassed(name) {
			to[textproto.CanonicalMIMEHeaderKey(name)] = slices.Clone(values)
		}
	}
	if id := from.Get(headerRequestID); id != "" {
		to.Set("X-Upstream-Request-Id", id)
	}
	if to.Get("Content-Type") == "" {
		to.Set("Content-Type", "application/octet-stream")
	}
}

func isEventStream(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == eventStream
}

// upstreamFailure reads a model's error body: OpenAI's shape, or text.
func upstreamFailure(status int, body []byte) reply.Failure {
	f := reply.Failure{Status: status, Message: "the model answered with status " + strconv.Itoa(status)}
	var doc struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Code    any    `json:"code"` // a string or a number, by vendor
		} `json:"error"`
	}
	if json.Unmarshal(body, &doc) != nil {
		if text := clip(strings.TrimSpace(string(body))); text != "" {
			f.Message += ": " + text
		}
		return f
	}
	if doc.Error.Message != "" {
		f.Message = doc.Error.Message
	}
	f.Type = doc.Error.Type
	switch code := doc.Error.Code.(type) {
	case string:
		f.Code = code
	case float64:
		f.Code = strconv.FormatFloat(code, 'f', -1, 64)
	}
	return f
}
