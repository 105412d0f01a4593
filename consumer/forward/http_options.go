package forward

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"
)

// Key is an API key. It prints as "***" wherever it is printed; only a conversion to string shows it.
type Key string

// String hides the key.
func (k Key) String() string {
	if k == "" {
		return ""
	}
	return "***"
}

// GoString hides the key from %#v.
func (k Key) GoString() string { return `"` + k.String() + `"` }

// LogValue hides the key from slog.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText hides the key from encoders.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// HTTPOptions configures an [HTTP] downstream.
type HTTPOptions struct {
	// URL is the upstream's base as OpenAI SDKs take it, such as http://127.0.0.1:8000/v1. A request's path
	// /v1/chat/completions becomes URL/chat/completions; a request without a path goes to URL itself.
	URL string
	// Key is sent as a bearer token. Empty sends none.
	Key Key
	// UserHeader, if set, carries the request's user to the upstream.
	UserHeader string
	// Allow lists the permitted requests: "METHOD PATH", with the path as it is in the request (see address), or "METHOD"
	// alone for a request without a path. Any other request fails with [CodeNotAllowed] and is not sent. Empty means
	// [DefaultAllow].
	Allow []string
	// NoStreamUsage leaves the body of streams as it is. Otherwise stream_options.include_usage is added for a caller who
	// says nothing of stream_options, and what it adds to the stream is taken out again; an upstream that refuses it is not
	// asked again.
	NoStreamUsage bool

	// Connect bounds the TCP connection, and again the TLS handshake. 0 means 5 s.
	Connect time.Duration
	// FirstByte bounds the wait for the answer's first byte of body, the wait for a connection included. A model that
	// does not stream generates all of its answer in this time. 0 means 5 min.
	FirstByte time.Duration
	// Idle bounds the wait between bytes after the first. 0 means 1 min.
	Idle time.Duration
	// Total bounds all of it. 0 means 10 min.
	Total time.Duration

	// Conns bounds open connections. 0 means no bound: the pool's slots are the bound.
	Conns int
	// IdleConns are kept open. 0 means 256.
	IdleConns int
	// IdleConn is how long. 0 means 90 s.
	IdleConn time.Duration

	// BodyBytes bounds an answer that does not stream. 0 means 16 MiB.
	BodyBytes int64
	// EventBytes bounds one event of a stream. 0 means 1 MiB.
	EventBytes int
	// RetryAfter bounds what an upstream may ask for. 0 means 1 h.
	RetryAfter time.Duration
}

func (o *HTTPOptions) fill() error {
	var errs []error
	base, err := url.Parse(o.URL)
	if err != nil {
		errs = append(errs, errors.New("url: malformed")) // the parser's text would repeat a password in it
	} else if (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		errs = append(errs, errors.New("url: want http://HOST or https://HOST"))
	}
	if strings.ContainsAny(string(o.Key), "\r\n") {
		errs = append(errs, errors.New("key: holds a line break"))
	}
	if len(o.Allow) == 0 {
		o.Allow = DefaultAllow()
	}
	if len(o.Allow) > allowMax {
		errs = append(errs, fmt.Errorf("allow: %d entries, want at most %d", len(o.Allow), allowMax))
	}
	for _, entry := range o.Allow {
		if err := CheckAllow(entry); err != nil {
			errs = append(errs, fmt.Errorf("allow: %w", err))
		}
	}
	duration := func(name string, d *time.Duration, zero time.Duration) {
		if *d < 0 {
			errs = append(errs, fmt.Errorf("%s: %s is negative", name, *d))
		} else if *d == 0 {
			*d = zero
		}
	}
	duration("connect", &o.Connect, 5*time.Second)
	duration("first_byte", &o.FirstByte, 5*time.Minute)
	duration("idle", &o.Idle, time.Minute)
	duration("total", &o.Total, 10*time.Minute)
	duration("idle_conn", &o.IdleConn, 90*time.Second)
	duration("retry_after", &o.RetryAfter, time.Hour)
	number := func(name string, n *int, zero int) {
		if *n < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", name, *n))
		} else if *n == 0 {
			*n = zero
		}
	}
	number("conns", &o.Conns, 0)
	number("idle_conns", &o.IdleConns, 256)
	number("event_bytes", &o.EventBytes, 1<<20)
	if o.BodyBytes < 0 {
		errs = append(errs, fmt.Errorf("body_bytes: %d is negative", o.BodyBytes))
	} else if o.BodyBytes == 0 {
		o.BodyBytes = 16 << 20
	}
	return errors.Join(errs...)
}
