package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/penstockmq/penstock/consumer/mq"
	"github.com/penstockmq/penstock/consumer/reply"
)

const preferAsync = "Prefer: wait=5, Respond-Async"

// accept sends an asynchronous request and returns its URL and job.
func (r *rig) accept(headers ...string) (string, job) {
	r.t.Helper()
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody, append(headers, preferAsync)...)
	a.check(r.t, 202, "")
	j := r.peek()
	url := a.header.Get("Location")
	if url != "/v1/requests/"+j.ID || a.header.Get(headerRequestID) != j.ID {
		r.t.Errorf("Location %s of request %s", url, j.ID)
	}
	if a.header.Get("Preference-Applied") != "respond-async" || a.header.Get("Retry-After") == "" {
		r.t.Errorf("%v", a.header)
	}
	d := a.document(r.t)
	if d.ID != j.ID || d.State != "queued" || d.Object != "request" || d.Model != "gpt-4o" || d.CreatedAt == 0 || d.ExpiresAt <= d.CreatedAt {
		r.t.Errorf("document %+v", d)
	}
	if !j.Async || j.Reply != "" {
		r.t.Errorf("request %+v", j.Request)
	}
	return url, j
}

func (a answer) document(t *testing.T) requestDocument {
	t.Helper()
	var d requestDocument
	must(t, json.Unmarshal([]byte(a.body), &d))
	if a.header.Get(headerRequestState) != d.State {
		t.Errorf("header says %q, document %q", a.header.Get(headerRequestState), d.State)
	}
	return d
}

func TestAsyncRequest(t *testing.T) {
	r := newRig(t, nil)
	url, j := r.accept()

	a := r.ask(http.MethodGet, url, "")
	a.check(t, 202, "")
	if d := a.document(t); d.State != "queued" || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", d)
	}
	r.ask(http.MethodGet, url, "", "Authorization: Bearer "+r.other).check(t, 404, "request_not_found")
	r.ask(http.MethodDelete, url, "", "Authorization: Bearer "+r.other).check(t, 404, "request_not_found")

	must(t, r.store.Running(t.Context(), reply.Record{ID: j.ID}, 1))
	a = r.ask(http.MethodGet, url, "")
	a.check(t, 202, "")
	if d := a.document(t); d.State != "running" || d.StartedAt == 0 {
		t.Errorf("%+v", d)
	}

	must(t, r.store.Finish(t.Context(), j.ID, 1, reply.Result{
		Status: 201, Header: http.Header{"Content-Type": {"application/x"}, "X-Model": {"y"}}, Body: []byte("result"),
	}))
	for range 2 { // as often as one likes
		a = r.ask(http.MethodGet, url, "")
		a.check(t, 201, "")
		if a.body != "result" || a.header.Get("Content-Type") != "application/x" || a.header.Get("X-Model") != "y" {
			t.Errorf("%v %s", a.header, a.body)
		}
		if a.header.Get(headerRequestState) != "done" {
			t.Error(a.header)
		}
	}
	r.ask(http.MethodGet, url, "", "Authorization: Bearer "+r.other).check(t, 404, "request_not_found")
	a = r.ask(http.MethodDelete, url, "") // too late: it shows what is
	a.check(t, 200, "")
	if d := a.document(t); d.State != "done" {
		t.Errorf("%+v", d)
	}
}

func TestAsyncFailure(t *testing.T) {
	r := newRig(t, nil)
	url, j := r.accept()
	must(t, r.store.Fail(t.Context(), j.ID, 1, reply.Failure{Status: 503, Code: "overloaded", Message: "no room"}))
	a := r.ask(http.MethodGet, url, "")
	a.check(t, 503, "overloaded")
	if d := a.document(t); d.ID != j.ID || d.State != "failed" {
		t.Errorf("%s", a.body)
	}
	if d := r.ask(http.MethodDelete, url, "").document(t); d.State != "failed" || d.Error == nil || d.Error.Code != "overloaded" {
		t.Errorf("%+v", d)
	}
}

func TestAsyncCancel(t *testing.T) {
	r := newRig(t, nil)
	url, j := r.accept()
	a := r.ask(http.MethodDelete, url, "")
	a.check(t, 200, "")
	if d := a.document(t); d.State != "cancelled" || d.FinishedAt == 0 {
		t.Errorf("%+v", d)
	}
	if h := receive(t, r.broker.recalled, "not recalled"); h != j.ID {
		t.Errorf("recalled %s", h)
	}
	got := r.ask(http.MethodGet, url, "")
	got.check(t, 409, "request_cancelled")
	if d := got.document(t); d.State != "cancelled" {
		t.Errorf("%s", got.body)
	}
	// A worker that has it already hears of it.
	url, j = r.accept()
	r.broker.deliver(j.ID)
	stopped := make(chan struct{}, 2)
	defer r.cancels.Register(j.ID, func() { stopped <- struct{}{} })()
	r.ask(http.MethodDelete, url, "").check(t, 200, "")
	receive(t, stopped, "not cancelled at the worker")
}

// C75: a request that expires says so.
func TestAsyncExpires(t *testing.T) {
	r := newRig(t, nil)
	past := time.Now().Add(-time.Minute).Round(0)
	rec := reply.Record{ID: "req_old", User: "alice", Model: "m", Created: past.Add(-time.Hour), Deadline: past}
	must(t, r.store.Create(t.Context(), rec))
	url := "/v1/requests/req_old"
	a := r.ask(http.MethodGet, url, "")
	a.check(t, 504, "request_timeout")
	if d := a.document(t); d.State != "expired" || d.ID != rec.ID {
		t.Errorf("%s", a.body)
	}
}

// A full cell looks at its oldest asynchronous requests before it refuses.
func TestAsyncPlacesAreFreedWhenNeeded(t *testing.T) {
	r := newRig(t, policyOf(t, `  - {user: "*", model: "*", depth: 2, rate: 1/10m}`))
	_, first := r.accept()
	r.accept()
	must(t, r.store.Running(t.Context(), reply.Record{ID: first.ID}, 1))
	r.accept()
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync)
	a.check(t, 429, "queue_full")
	// The one that was let in after all has used up no promise: this is the first.
	if got := a.header.Get("Retry-After"); got != "600" {
		t.Errorf("Retry-After %s, want that of the next place", got)
	}
}

func TestAsyncFreesItsPlaceWhenCancelled(t *testing.T) {
	r := newRig(t, policyOf(t, `  - {user: "*", model: "*", depth: 1}`))
	url, _ := r.accept()
	r.ask(http.MethodPost, "/v1/chat/completions", chatBody).check(t, 429, "queue_full")
	r.ask(http.MethodDelete, url, "").check(t, 200, "")
	r.accept()
}

// A send that is refused leaves no record: a caller over its limits does not fill the store.
func TestAsyncRefusedByTheBroker(t *testing.T) {
	r := newRig(t, nil)
	r.broker.refuseWith(&mq.CodeError{Code: 42900})
	a := r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync)
	a.check(t, 429, "queue_full")
	if rec, err := r.store.Get(t.Context(), a.header.Get(headerRequestID), "alice"); !errors.Is(err, reply.ErrNotFound) {
		t.Errorf("record %+v, %v", rec, err)
	}
}

func TestAsyncNeedsAStore(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Requests = nil })
	r.ask(http.MethodPost, "/v1/chat/completions", chatBody, preferAsync).check(t, 501, "async_unavailable")
	r.ask(http.MethodGet, "/v1/requests/req_x", "").check(t, 501, "async_unavailable")
	r.nothingSent()
}
