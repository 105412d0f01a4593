package gateway

import (
	"net/http"
	"strings"
)

// Owner is whose an API key is.
type Owner struct {
	User string
	Key  string // the key's name in the key file: a policy may give it an importance of its own; empty: it has none
}

// KeySource knows whose an API key is. [Keys] and [KeySet] are the two there are.
type KeySource interface {
	Owner(secret string) (Owner, bool)
}

// identify returns the owner of the request's API key: the one of "Authorization: Bearer", as OpenAI has it, else that
// of "api-key", as Azure has it. Nothing else of a request says who it is from or how important it is.
func identify(keys KeySource, h http.Header) (Owner, error) {
	secret := h.Get("api-key")
	if value := h.Get("Authorization"); value != "" {
		scheme, token, _ := strings.Cut(value, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return Owner{}, errNoKey
		}
		secret = strings.TrimSpace(token)
	}
	if secret == "" {
		return Owner{}, errNoKey
	}
	owner, ok := keys.Owner(secret)
	if !ok {
		return Owner{}, errUnknownKey
	}
	return owner, nil
}

// callerIDMax bounds what is echoed.
const callerIDMax = 128

// callerID is the caller's own name for its request, if it is fit to be sent back.
func callerID(h http.Header) string {
	id := h.Get("X-Client-Request-Id")
	if id == "" {
		id = h.Get(headerRequestID)
	}
	if len(id) > callerIDMax {
		return ""
	}
	for i := range len(id) {
		if id[i] < ' ' || id[i] > '~' {
			return ""
		}
	}
	return id
}

// prefersAsync reports whether the caller asked for "Prefer: respond-async" (RFC 7240, section 4.1).
func prefersAsync(h http.Header) bool {
	for _, line := range h.Values("Prefer") {
		for part := range strings.SplitSeq(line, ",") {
			token, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(token), "respond-async") {
				return true
			}
		}
	}
	return false
}
