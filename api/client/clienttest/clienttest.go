// Package clienttest answers a client of package client as a node would, with given
// values, and records what it was asked: it is for tests of programs that use a client.
package clienttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/wire"
)

// A Node answers requests from a table. It is safe for concurrent use.
type Node struct {
	mu       sync.Mutex
	answers  map[string]any
	mux      *http.ServeMux // of answers; nil: they have changed
	failure  error
	requests []string
}

// A Status is an answer with another HTTP status than 200.
type Status struct {
	Code  int
	Value any
}

// New returns a node with these answers: see [Node.Answer].
func New(answers map[string]any) *Node { return &Node{answers: maps.Clone(answers)} }

// Answer sets the answer to the requests that match a pattern of [http.ServeMux]. An
// error is answered with its problem, nil with no content, a func(*http.Request) any with
// what it returns, an http.HandlerFunc by itself, bytes as they are, and any other value
// as JSON.
func (n *Node) Answer(pattern string, v any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.answers == nil {
		n.answers = map[string]any{}
	}
	n.answers[pattern], n.mux = v, nil
}

// Fail answers every request with the problem of err, or with nil again from the table.
func (n *Node) Fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failure = err
}

// Requests returns the requests since the previous call as METHOD URI [DOCUMENT]. The body
// of a stream is not in there.
func (n *Node) Requests() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.requests
	n.requests = nil
	return all
}

// ServeHTTP answers a request.
func (n *Node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text := r.Method + " " + r.URL.RequestURI()
	if r.Header.Get("Content-Type") != "application/octet-stream" {
		doc, err := io.ReadAll(r.Body)
		if err != nil {
			writeProblem(w, err)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(doc))
		text = strings.TrimSpace(text + " " + string(doc))
	}
	mux, err := n.record(text)
	if err != nil {
		writeProblem(w, err)
		return
	}
	mux.ServeHTTP(w, r)
}

// record records a request, and returns the answers or the error that [Node.Fail] set.
func (n *Node) record(text string) (*http.ServeMux, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests = append(n.requests, text)
	if n.mux == nil {
		n.mux = newMux(n.answers)
	}
	return n.mux, n.failure
}

func newMux(answers map[string]any) *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, v := range answers {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { write(w, r, v) })
	}
	if _, ok := answers["/"]; !ok {
		mux.HandleFunc("/", noRoute)
	}
	return mux
}

func noRoute(w http.ResponseWriter, r *http.Request) {
	p := api.ProblemOf(fmt.Errorf("%w: there is no %s %s", wire.ErrNotFound, r.Method, r.URL.Path))
	p.Fix = wire.NoRouteFix
	writeProblem(w, p)
}

func write(w http.ResponseWriter, r *http.Request, v any) {
	switch v := v.(type) {
	case error:
		writeProblem(w, v)
	case nil:
		w.WriteHeader(http.StatusNoContent)
	case func(*http.Request) any:
		write(w, r, v(r))
	case http.HandlerFunc:
		v(w, r)
	case []byte:
		_, _ = w.Write(v) // a client that has disconnected does not need it
	case Status:
		writeJSON(w, v.Code, "application/json", v.Value)
	default:
		writeJSON(w, http.StatusOK, "application/json", v)
	}
}

func writeProblem(w http.ResponseWriter, err error) {
	p := api.ProblemOf(err)
	writeJSON(w, p.Status, wire.ProblemType, p)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that has disconnected does not need it
}

// Serve serves h on a socket until the test ends or stop is called. The contexts of the
// requests end at the stop, which waits for the requests.
func Serve(t testing.TB, h http.Handler, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		err := srv.Shutdown(context.Background())
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		if err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}
