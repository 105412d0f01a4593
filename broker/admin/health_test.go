package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
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

// TestDegradedServes: a fault that a restart does not repair is reported with status 200, and
// does not hide a fault that stops the process from serving.
func TestDegradedServes(t *testing.T) {
	var failing error
	s := admin.New(admin.Options{Registry: admin.NewRegistry("test"), Checks: []admin.Check{
		{Name: "changing", Run: func(context.Context) error { return failing }},
		{Name: "store", Run: func(context.Context) error { return fmt.Errorf("%w: a block is damaged", admin.ErrDegraded) }},
	}})
	for _, want := range []struct {
		failing error
		code    int
		status  string
	}{{nil, http.StatusOK, "degraded"}, {errors.New("away"), http.StatusServiceUnavailable, "unavailable"}} {
		failing = want.failing
		code, body := ask(t, s, "/readyz")
		if code != want.code || !strings.Contains(body, `"status":"`+want.status+`"`) || !strings.Contains(body, "a block is damaged") {
			t.Errorf("readyz is %d %s, want %d %s", code, body, want.code, want.status)
		}
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
