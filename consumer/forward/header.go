package forward

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// keptHeaders are the upstream's headers that a caller gets. It is a list of what passes and not of what does not:
// cookies, hop-by-hop headers and the platform's own rate limits must not leak when an upstream invents a new one.
var keptHeaders = [...]string{
	"Content-Type", "Content-Disposition", "Content-Language", "X-Request-Id",
	"Openai-Model", "Openai-Processing-Ms", "Openai-Version",
}

const headerValueMax = 1 << 10 // bytes; a longer value is dropped

func kept(h http.Header) http.Header {
	out := make(http.Header, 4)
	for _, name := range keptHeaders {
		if value := h.Get(name); value != "" && len(value) <= headerValueMax {
			out.Set(name, value)
		}
	}
	return out
}

// retryAfterFloor keeps "Retry-After: 0", or a date that has passed, from turning a full upstream into a busy loop.
const retryAfterFloor = 50 * time.Millisecond

// retryAfter reads when an upstream wants to be asked again: retry-after-ms as OpenAI sends it, else Retry-After in
// seconds or as an HTTP date (RFC 9110, 10.2.3). False if it does not say, or says nonsense.
func retryAfter(h http.Header, now time.Time, most time.Duration) (time.Duration, bool) {
	if ms, ok := number(h.Get("Retry-After-Ms")); ok {
		return clamp(ms*float64(time.Millisecond), most), true
	}
	text := h.Get("Retry-After")
	if s, ok := number(text); ok {
		return clamp(s*float64(time.Second), most), true
	}
	if at, err := http.ParseTime(text); err == nil {
		return clamp(float64(at.Sub(now)), most), true
	}
	return 0, false
}

func number(s string) (float64, bool) {
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return f, err == nil && f >= 0 && !math.IsInf(f, 0)
}

func clamp(d float64, most time.Duration) time.Duration {
	if d >= float64(most) {
		return most
	}
	return max(time.Duration(math.Ceil(d)), retryAfterFloor)
}
