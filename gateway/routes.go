package gateway

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/penstockmq/penstock/consumer/reply"
)

// handler answers one call. An error it returns is answered by the wrapper; one it answered itself it does not return.
type handler func(c *call) error

// methods maps HTTP methods to handlers.
type methods map[string]handler

// routes makes the table of URLs. Models may have slashes in their names, so they take the rest of the path.
func (g *Gateway) routes() *http.ServeMux {
	mux := http.NewServeMux()
	add := func(pattern, route string, m methods) { mux.HandleFunc(pattern, g.handle(route, m)) }
	openAI := func(path string, streams bool) {
		add(path, path, methods{http.MethodPost: g.openAI(path, streams)})
	}
	openAI(reply.PathChatCompletions, true)
	openAI(reply.PathCompletions, true)
	openAI(reply.PathEmbeddings, false)
	add("/v1/enqueue/{model...}", "/v1/enqueue/{model}", methods{http.MethodPost: g.enqueue})
	add("/v1/models", "/v1/models", methods{http.MethodGet: g.listModels})
	add("/v1/models/{model...}", "/v1/models/{model}", methods{http.MethodGet: g.getModel})
	add("/v1/requests/{id}", "/v1/requests/{id}", methods{
		http.MethodGet:    g.getRequest,
		http.MethodDelete: g.cancelRequest,
	})
	add("/", "other", nil)
	return mux
}

// handle wraps what all URLs have in common.
func (g *Gateway) handle(route string, m methods) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := g.newCall(w, r, route)
		g.metrics.Active.Add(1)
		defer g.metrics.Active.Add(-1)
		defer c.release()
		if err := g.serve(c, m); err != nil {
			c.refuse(err)
		}
		g.opts.Observer.Request(route, c.code, c.status, time.Since(c.arrived))
		if c.abort {
			panic(http.ErrAbortHandler) // net/http's own way to cut a connection
		}
	}
}

// serve checks the parts of a request that do not depend on the URL. A request without a known key holds no shared resource.
func (g *Gateway) serve(c *call, m methods) error {
	if m == nil {
		return refuse(errRoute, "", "no such URL: %s %s", c.r.Method, clip(c.r.URL.Path))
	}
	method := c.r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	h, ok := m[method]
	if !ok {
		c.w.Header().Set("Allow", m.allow())
		return refuse(errMethod, "", "%s is not a method of this URL", clip(c.r.Method))
	}
	owner, err := identify(g.opts.Keys, c.r.Header)
	if err != nil {
		return err
	}
	c.user, c.key = owner.User, owner.Key
	showedKey(c.r.Context())
	c.caller = callerOf(g.seed, c.user, c.r.RemoteAddr)
	if err := g.shares.take(c.user, holding{requests: 1}); err != nil {
		g.metrics.Shared.Add(shared(err))
		return err
	}
	defer g.shares.give(c.user, holding{requests: 1})
	return h(c)
}

func (m methods) allow() string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// clip bounds what of a caller's text comes back to it.
func clip(s string) string {
	const most = 128
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "")
}
