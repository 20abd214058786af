package api

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
)

// A Window answers on a node's socket from the moment on at which the process has
// it. Until the node is opened, which takes its time with a large store, it says
// that it lives and how far it is, and asks everybody else to come back (S50).
type Window struct {
	cfg    Config
	far    atomic.Pointer[string]
	opened atomic.Pointer[http.Handler]
}

// NewWindow makes a window of a node that is still to be opened.
func NewWindow(cfg Config) *Window {
	w := &Window{cfg: cfg.withDefaults()}
	w.Tell("its store is opened")
	return w
}

// Tell says how far the start is, in a few words.
func (w *Window) Tell(text string) { w.far.Store(&text) }

// Open has n answer from now on.
func (w *Window) Open(n Node) {
	h := New(n, w.cfg).local()
	w.opened.Store(&h)
}

// Serve is [Server.Serve] of what answers at the time.
func (w *Window) Serve(ctx context.Context, l net.Listener) error { return serve(ctx, l, w, w.cfg) }

// ServeHTTP answers a request.
func (w *Window) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if h := w.opened.Load(); h != nil {
		(*h).ServeHTTP(rw, r)
		return
	}
	if r.URL.Path == "/healthz" && r.Method == http.MethodGet {
		reply(rw, http.StatusOK, Health{Status: "ok"})
		return
	}
	fail(rw, problem(CodeStarting, "%v: %s", ErrStarting, *w.far.Load()))
}
