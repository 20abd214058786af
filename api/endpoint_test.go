package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/wire"
)

// TestEndpointBeforeTheNode checks that a node that is still opening its store is alive,
// reports its progress, and asks clients to retry later.
func TestEndpointBeforeTheNode(t *testing.T) {
	w := api.NewEndpoint(api.Config{})
	ask := func(method, path string) *httptest.ResponseRecorder {
		var body io.Reader
		if method == "POST" {
			body = strings.NewReader("{}")
		}
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, httptest.NewRequest(method, path, body))
		return rec
	}
	if r := ask("GET", "/healthz"); r.Code != http.StatusOK {
		t.Errorf("GET /healthz: %d %s", r.Code, r.Body)
	}
	w.SetProgress("12 of 40 MiB of the store are read")
	for _, path := range []string{"GET /readyz", "GET /v1/status", "POST /v1/tasks", "GET /nowhere"} {
		method, path, _ := strings.Cut(path, " ")
		r := ask(method, path)
		var p wire.Problem
		err := json.Unmarshal(r.Body.Bytes(), &p)
		if err != nil || r.Code != http.StatusServiceUnavailable || p.Code != wire.CodeStarting || !strings.Contains(p.Detail, "12 of 40 MiB") {
			t.Errorf("%s %s: %d %+v, %v", method, path, r.Code, p, err)
		}
		if r.Header().Get("Retry-After") == "" || r.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: header %v", method, path, r.Header())
		}
	}
	n := nodetest.Open(t, nil)
	nodetest.Run(t, n)
	for deadline := time.Now().Add(time.Minute); n.Ready() != nil && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	w.SetNode(n)
	for _, path := range []string{"/healthz", "/readyz", "/v1/status"} {
		if r := ask("GET", path); r.Code != http.StatusOK {
			t.Errorf("GET %s of an open node: %d %s", path, r.Code, r.Body)
		}
	}
}
