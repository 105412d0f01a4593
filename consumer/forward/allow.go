package forward

import (
	"fmt"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/penstockmq/penstock/consumer/reply"
)

// Method and path of a request are message properties, which any producer of the broker can set, and the request carries
// the platform's key. So the upstream only receives listed pairs of method and path, compared byte by byte: a path that
// a server could normalise to another path ("..", "%2e", "//", a query, an absolute URL) is not in the list.

const (
	contentTypeMax = 256 // bytes
	allowMax       = 256 // entries
	allowPathMax   = 512 // bytes
)

var (
	methodRE    = regexp.MustCompile(`^[A-Z]{1,16}$`)
	allowPathRE = regexp.MustCompile(`^/[A-Za-z0-9._~/@:+,=-]*$`)
)

// DefaultAllow returns the default of [HTTPOptions].Allow: the requests that a gateway sends.
func DefaultAllow() []string {
	entries := []string{http.MethodPost}
	for _, p := range reply.Paths() {
		entries = append(entries, http.MethodPost+" "+p)
	}
	return entries
}

// CheckAllow returns an error that describes why an entry of [HTTPOptions].Allow is invalid.
func CheckAllow(entry string) error {
	method, to, hasPath := strings.Cut(entry, " ")
	valid := methodRE.MatchString(method) && method != http.MethodConnect && method != http.MethodTrace
	if hasPath {
		valid = valid && len(to) <= allowPathMax && allowPathRE.MatchString(to) && path.Clean(to) == to
	}
	if !valid {
		return fmt.Errorf("invalid entry %.64q: want a method, or a method, a space and a plain path such as %q",
			entry, http.MethodPost+" "+reply.PathChatCompletions)
	}
	return nil
}

// allowed returns the set of pairs. A method without a path stands for the upstream's own address.
func allowed(entries []string) map[string]bool {
	set := make(map[string]bool, len(entries))
	for _, e := range entries {
		set[e] = true
	}
	return set
}

func endpointOf(r Request) string {
	method := r.Method
	if method == "" {
		method = http.MethodPost
	}
	if r.Path == "" {
		return method
	}
	return method + " " + r.Path
}

// refusal returns the reason for which r may not be sent to the upstream, and whether there is one.
func (h *HTTP) refusal(r Request) (reply.Failure, bool) {
	if e := endpointOf(r); !h.allow[e] {
		return reply.Failure{
			Status: http.StatusForbidden, Code: CodeNotAllowed,
			Message: fmt.Sprintf("method and path %.128q are not in the allow list of this model", e),
		}, true
	}
	if r.ContentType == "" {
		return reply.Failure{}, false
	}
	if _, _, err := mime.ParseMediaType(r.ContentType); err != nil || len(r.ContentType) > contentTypeMax {
		return reply.Failure{
			Status: http.StatusBadRequest, Code: CodeContentType,
			Message: fmt.Sprintf("content type %.128q: want a media type of at most %d bytes", r.ContentType, contentTypeMax),
		}, true
	}
	return reply.Failure{}, false
}

// unsent is the outcome of a request that was sent to no downstream and may be sent to none later.
func unsent(f reply.Failure) Outcome {
	return Outcome{Kind: Failed, Unsent: true, Failure: f, Err: f}
}
