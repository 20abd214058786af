package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/event"
	"github.com/balefire/balefire/executor"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/schedule"
	"github.com/balefire/balefire/submit/redrive"
	"github.com/balefire/balefire/view"
	"github.com/balefire/balefire/view/why"
	"github.com/balefire/balefire/wire"
)

// Config tunes the server. The zero value of each field means its default.
type Config struct {
	Payload int64         // bytes of a task's body inside JSON; default 10 MiB
	Grace   time.Duration // time for running requests at a stop; default 5 s
	Logger  *slog.Logger  // default slog.Default()
}

func (c Config) withDefaults() Config {
	c.Payload = cmp.Or(c.Payload, 10<<20)
	c.Grace = cmp.Or(c.Grace, 5*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

// maxDocument returns the size limit of a JSON task: its body is a third longer in base64,
// and there are other fields.
func (c Config) maxDocument() int64 { return c.Payload/3*4 + smallDocument }

// A Server answers requests with the data of a node.
type Server struct {
	cfg   Config
	mux   *http.ServeMux
	api   huma.API
	meter *meter

	views     *view.Views
	explainer *why.Explainer
	pairing   *pairing.Pairing
	queues    *queue.Queues
	schedules *schedule.Scheduler
	handlers  *executor.Executor
	redriver  *redrive.Redriver
	mail      *mailbox.Boxes
	events    *event.Log
	recorder  audit.Recorder
	registry  *prometheus.Registry

	submitter submitter
	tasks     taskService
	mesh      meshService
	store     storeService
	life      lifecycle
}

// A submitter takes tasks.
type submitter interface {
	Submit(ctx context.Context, r wire.Request) (wire.Submitted, error)
	SubmitMany(ctx context.Context, rs []wire.Request) ([]wire.Submitted, []error)
}

// A taskService ends and removes tasks.
type taskService interface {
	Cancel(ctx context.Context, ref string, hard bool, reason string) (wire.Task, error)
	Purge(ctx context.Context, q wire.Query, dryRun bool) (wire.Purged, error)
}

// A meshService changes and checks what this node knows of the members.
type meshService interface {
	PruneMembers(ctx context.Context, age time.Duration, limit int, dryRun bool) (wire.Pruned, error)
	Converge(ctx context.Context) (wire.Convergence, error)
}

// A storeService compacts and copies the store.
type storeService interface {
	Compact(ctx context.Context) error
	Snapshot(ctx context.Context, dir, toKey string) error
}

// A lifecycle stops the node, and tells whether it works and is ready.
type lifecycle interface {
	Stop(ctx context.Context, handoff bool) error
	Healthy() error
	Ready() error
}

// New returns the server of n. It serves nothing: see [Server.Serve].
func New(n *node.Node, cfg Config) *Server {
	s := &Server{
		cfg: cfg.withDefaults(), mux: http.NewServeMux(), meter: newMeter(n.Registry()), registry: n.Registry(),
		views: n.Views, explainer: n.Explainer, pairing: n.Pairing, queues: n.Queues, schedules: n.Schedules, handlers: n.Handlers,
		redriver: n.Redriver, mail: n.Mail, events: n.Events, recorder: n.Audit,
		submitter: n, tasks: n, mesh: n, store: n, life: n,
	}
	s.api = newAPI(s.mux)
	s.routeSubmits()
	s.routeTasks()
	s.routeDeadLetters()
	s.routePeers()
	s.routeNetwork()
	s.routeSharedQueues()
	s.routeMail()
	s.routeBoxes()
	s.routeMailStream()
	s.routeHandlers()
	s.routeStore()
	s.routeHealth()
	return s
}

// Handler returns all routes except pprof, without access control: whoever can reach it can
// do everything.
func (s *Server) Handler() http.Handler { return s.meter.count(s.dispatch) }

// dispatch also answers unknown routes with a problem.
func (s *Server) dispatch(w *status, r *http.Request) {
	defer s.recoverPanic(w, r)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if h, pattern := s.mux.Handler(r); pattern == "" {
		noRoute(w, r, h)
		return
	}
	if r.Body == nil || r.Body == http.NoBody {
		s.mux.ServeHTTP(w, r)
		return
	}
	in := r.WithContext(r.Context()) // net/http goes by the body of r
	defer func() { r.Pattern = in.Pattern }()
	body := &requestBody{ReadCloser: r.Body}
	in.Body = body
	s.mux.ServeHTTP(w, in)
	if w.code >= http.StatusBadRequest {
		linger(w, r, body)
	}
}

// recoverPanic turns a panic, which is a bug, into a problem, or aborts the response if it
// has begun.
func (s *Server) recoverPanic(w *status, r *http.Request) {
	v := recover()
	switch {
	case v == nil:
	case v == http.ErrAbortHandler:
		panic(v)
	default:
		s.cfg.Logger.Error("a request caused a panic", "method", r.Method, "route", r.Pattern, "panic", v, "stack", string(debug.Stack()))
		if w.code != 0 {
			panic(http.ErrAbortHandler)
		}
		writeProblem(w, problem(wire.CodeInternal, "a bug in the node: %.200v", v))
	}
}

// noRoute uses the mux's own response to find out why there is no route.
func noRoute(w http.ResponseWriter, r *http.Request, h http.Handler) {
	probe := probe{header: http.Header{}}
	h.ServeHTTP(&probe, r)
	allow := probe.header.Get("Allow")
	if allow == "" {
		p := problem(wire.CodeNotFound, "there is no %s %.200s", r.Method, r.URL.Path)
		p.Fix = wire.NoRouteFix
		writeProblem(w, p)
		return
	}
	p := problem(wire.CodeMethod, "%s %.200s: the allowed methods are %s", r.Method, r.URL.Path, allow)
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		p.Fix = fmt.Sprintf("a GET never changes anything here: use %s", allow)
	}
	w.Header().Set("Allow", allow)
	writeProblem(w, p)
}

// A probe keeps the headers of a response and drops the rest.
type probe struct{ header http.Header }

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
func (p *probe) WriteHeader(int)             {}

// Serve serves on l until ctx is done, then stops: requests that wait for a task are
// answered at once, others have the grace period. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return serve(ctx, l, s.localHandler(), s.cfg)
}

func serve(ctx context.Context, l net.Listener, h http.Handler, cfg Config) error {
	if network := l.Addr().Network(); network != "unix" {
		return errors.Join(fmt.Errorf("serve the api on %s %s: it has no access control and can be served only on unix sockets", network, l.Addr()), l.Close())
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	base = context.WithValue(base, stopKey{}, ctx)
	var streams sync.WaitGroup // Shutdown does not wait for them
	base = context.WithValue(base, streamsKey{}, &streams)
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       withCaller,
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return errors.Join(fmt.Errorf("serve the api: %w", err), srv.Close())
	case <-ctx.Done():
	}
	grace, stop := context.WithTimeout(base, cfg.Grace)
	defer stop()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		cfg.Logger.Warn("requests were aborted at the stop", "grace", cfg.Grace)
		cancel()
		err = srv.Close()
	}
	<-failed
	streams.Wait()
	return err
}

type (
	stopKey    struct{} // context.Context: done when the server begins to stop
	streamsKey struct{} // *sync.WaitGroup: connections that are no HTTP any more
)

// stopContext returns a context that ends with ctx, after d, or when the server begins to
// stop, which is its cause then.
func stopContext(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithTimeout(ctx, d)
	serving, ok := ctx.Value(stopKey{}).(context.Context)
	if !ok {
		return out, cancel
	}
	out, because := context.WithCancelCause(out)
	stop := context.AfterFunc(serving, func() { because(wire.ErrDraining) })
	return out, func() { stop(); because(nil); cancel() }
}

// localHandler returns all routes, for clients of the socket.
func (s *Server) localHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("/", s.Handler())
	return mux
}

// withCaller notes the user at the other end of a unix socket: the audit log names it.
func withCaller(ctx context.Context, c net.Conn) context.Context {
	if u, ok := c.(*net.UnixConn); ok {
		if uid, ok := peerUser(u); ok {
			return audit.WithCaller(ctx, fmt.Sprintf("uid:%d", uid))
		}
	}
	return ctx
}
