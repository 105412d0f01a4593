package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/penstockmq/penstock/broker/admin"
)

func ask(t *testing.T, s http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestReadinessIsThatOfAllChecks(t *testing.T) {
	var failing error
	s := admin.New(admin.Options{Registry: admin.NewRegistry("test"), Checks: []admin.Check{
		{Name: "good", Run: func(context.Context) error { return nil }},
		{Name: "changing", Run: func(context.Context) error { return failing }},
	}})
	if code, body := ask(t, s, "/readyz"); code != http.StatusOK {
		t.Errorf("readyz is %d %s", code, body)
	}
	failing = errors.New("not connected")
	code, body := ask(t, s, "/readyz")
	var got struct {
		Status string
		Checks map[string]string
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if code != http.StatusServiceUnavailable || got.Status != "unavailable" || got.Checks["good"] != "ok" || got.Checks["changing"] != "not connected" {
		t.Errorf("readyz is %d %s", code, body)
	}
	if code, body := ask(t, s, "/healthz"); code != http.StatusOK {
		t.Errorf("healthz follows readiness: %d %s", code, body)
	}
}

func TestReadinessIsBounded(t *testing.T) {
	s := admin.New(admin.Options{Registry: admin.NewRegistry("test"), Checks: []admin.Check{
		{Name: "stuck", Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
	}})
	if code, _ := ask(t, s, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("readyz is %d", code)
	}
}

func TestWithoutABroker(t *testing.T) {
	s := admin.New(admin.Options{Registry: admin.NewRegistry("test")})
	for path, want := range map[string]int{
		"/metrics": http.StatusOK, "/healthz": http.StatusOK, "/readyz": http.StatusOK,
		"/api/v1/topics": http.StatusNotFound, "/api/v1/groups/g/suspends": http.StatusNotFound, "/api/v1/policy": http.StatusNotFound,
	} {
		if code, body := ask(t, s, path); code != want {
			t.Errorf("%s is %d %s, want %d", path, code, body, want)
		}
	}
}
