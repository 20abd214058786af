package api

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
)

// A Endpoint answers on a node's socket from the moment on at which the process has
// it. Until the node is opened, which takes its time with a large store, it says
// that it lives and how far it is, and asks everybody else to come back (S50).
type Endpoint struct {
	cfg      Config
	progress atomic.Pointer[string]
	server   atomic.Pointer[http.Handler]
}

// NewEndpoint makes a window of a node that is still to be opened.
func NewEndpoint(cfg Config) *Endpoint {
	w := &Endpoint{cfg: cfg.withDefaults()}
	w.SetProgress("its store is opened")
	return w
}

// SetProgress says how far the start is, in a few words.
func (w *Endpoint) SetProgress(text string) { w.progress.Store(&text) }

// SetNode has n answer from now on.
func (w *Endpoint) SetNode(n Node) {
	h := New(n, w.cfg).localHandler()
	w.server.Store(&h)
}

// Serve is [Server.Serve] of what answers at the time.
func (w *Endpoint) Serve(ctx context.Context, l net.Listener) error { return serve(ctx, l, w, w.cfg) }

// ServeHTTP answers a request.
func (w *Endpoint) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if h := w.server.Load(); h != nil {
		(*h).ServeHTTP(rw, r)
		return
	}
	if r.URL.Path == "/healthz" && r.Method == http.MethodGet {
		writeJSON(rw, http.StatusOK, Health{Status: "ok"})
		return
	}
	writeProblem(rw, problem(CodeStarting, "%v: %s", ErrStarting, *w.progress.Load()))
}
