package api

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/wire"
)

// An Endpoint answers on a node's socket from the start of the process. Until the node is
// open, which takes long with a large store, it answers health checks, reports the
// progress, and tells all other clients to retry (S50).
type Endpoint struct {
	cfg      Config
	progress atomic.Pointer[string]
	server   atomic.Pointer[http.Handler]
}

// NewEndpoint returns the endpoint of a node that is not open yet.
func NewEndpoint(cfg Config) *Endpoint {
	w := &Endpoint{cfg: cfg.withDefaults()}
	w.SetProgress("opening the store")
	return w
}

// SetProgress sets the progress of the start, in a few words.
func (w *Endpoint) SetProgress(text string) { w.progress.Store(&text) }

// SetNode serves the requests with n from now on.
func (w *Endpoint) SetNode(n *node.Node) {
	h := New(n, w.cfg).localHandler()
	w.server.Store(&h)
}

// Serve is [Server.Serve] for the endpoint.
func (w *Endpoint) Serve(ctx context.Context, l net.Listener) error { return serve(ctx, l, w, w.cfg) }

// ServeHTTP answers a request.
func (w *Endpoint) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if h := w.server.Load(); h != nil {
		(*h).ServeHTTP(rw, r)
		return
	}
	if r.URL.Path == "/healthz" && r.Method == http.MethodGet {
		writeJSON(rw, http.StatusOK, wire.Health{Status: "ok"})
		return
	}
	writeProblem(rw, problem(wire.CodeStarting, "%v: %s", wire.ErrStarting, *w.progress.Load()))
}
