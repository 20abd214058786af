package mailbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// handlers runs the handlers that the settings of the boxes name. What runs is in runners.
type handlers struct {
	self     proto.PeerID
	clock    clock.Clock
	log      *slog.Logger
	fail     func(point string) error
	want     func(proto.PeerID)
	programs Programs
	ledger   *ledgerOpener
	places   *places
	rules    *rules
	bodies   *letterBodies
	views    *views
	runners  *runners
}

// Programs runs the programs of mailboxes.
type Programs interface {
	// Program returns what runs a program for the mails of a box. The error wraps
	// [wire.ErrInvalid], or [wire.ErrDenied] if it may not be run here.
	Program(box string, s wire.MailHandler) (handler.Handler, error)
	// Interrupted reports whether the death of the node cut off the run of the mail with an id in
	// a box, once.
	Interrupted(box string, id proto.TaskID) bool
}

// handlerRetry is the wait after a handler could not read its box or not start its program.
const handlerRetry = 10 * time.Second

// runners are the handlers of the mailboxes of a node that run.
//
//	settings ─▶ runner ─▶ session ─▶ mail ─▶ program or URL ─▶ ack, nack, dead letter
//	                                                     └───▶ ack and forward, one record
//
// A runner is the reader of its box. It extends the lease of a mail while its program runs.
type runners struct {
	mu      sync.Mutex
	running map[string]*runner // by the name of the box in the ledger, and the subscription: see runnerKey
}

// A runner is the handler of one mailbox, or delivers the mail of a subscription into a box.
type runner struct {
	name     string // of the box in the ledger
	sub      string // of a topic; its settings are only Forward
	settings wire.MailHandler
	stop     func()       // it leases no more; what runs goes on
	needs    atomic.Int64 // bytes of what its box had no room for last; 0: it had

	mu      sync.Mutex
	problem *wire.Note // why it does not run
}

// runnerKey names the runner of a mailbox or of a subscription.
func runnerKey(name, sub string) string { return name + "/" + sub }

// run runs the handlers that the settings of the boxes name, until ctx is done. What
// runs then is stopped, and its mail is given back for nothing.
func (h *handlers) run(ctx context.Context, k *mail.Broker) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	runs, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(handler.ErrStopping)
	switch err := h.rules.read(ctx, k); {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("mailbox: %w", err)
	}
	for {
		h.match(runs, &wg)
		select {
		case <-ctx.Done():
			return nil
		case <-h.rules.changed:
		}
	}
}

// match starts and stops runners, so that they are those that the settings name.
func (h *handlers) match(runs context.Context, wg *sync.WaitGroup) {
	wanted := map[string]*runner{}
	for name, n := range h.rules.get() {
		if n.Handler != nil {
			wanted[runnerKey(name, "")] = &runner{name: name, settings: *n.Handler}
		}
		for sub, to := range n.to {
			wanted[runnerKey(name, sub)] = &runner{name: name, sub: sub, settings: wire.MailHandler{Forward: to}}
		}
	}
	h.runners.mu.Lock()
	defer h.runners.mu.Unlock()
	for key, r := range h.runners.running {
		if w := wanted[key]; w == nil || !reflect.DeepEqual(w.settings, r.settings) {
			r.stop()
			delete(h.runners.running, key)
		}
	}
	for key, r := range wanted {
		if h.runners.running[key] != nil {
			continue
		}
		var leasing context.Context
		leasing, r.stop = context.WithCancel(runs)
		h.runners.running[key] = r
		wg.Go(func() {
			defer r.stop()
			h.serve(runs, leasing, r)
		})
	}
}

// serve reads a box or a subscription for its runner until leasing ends, and returns when nothing
// runs.
func (h *handlers) serve(runs, leasing context.Context, r *runner) {
	session, says := h.serveSession, "a mailbox has a handler that cannot run; its mail waits"
	if r.sub != "" {
		session, says = h.serveForward, "a subscription cannot deliver into its box now; its mail waits"
	}
	for leasing.Err() == nil {
		err := session(runs, leasing, r)
		if leasing.Err() != nil {
			return
		}
		if r.setProblem(err) && err != nil {
			h.log.Warn(says, "box", place{text: h.places.text(r.name)}.path(r.sub), "why", err)
		}
		_ = wait(leasing, time.After(handlerRetry)) // the loop looks at leasing
	}
}

// serveSession is one session of a runner. It returns why no other one should begin at once.
func (h *handlers) serveSession(runs, leasing context.Context, r *runner) error {
	program, err := h.handlerOf(r.name, r.settings)
	if err != nil {
		return stopped(wire.ProblemHandler, wire.NoteArgs{Detail: err.Error()})
	}
	if err := h.canForward(leasing, r); err != nil {
		return err
	}
	p, k, err := h.places.subscribed(r.name, "")
	if err != nil {
		return err
	}
	reader, err := k.Read(leasing, mail.Reading{Box: p.name, Reader: "handler", Credit: max(r.settings.Concurrency, 1)})
	if err != nil {
		return unread(p, "", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer h.leaveRunner(leasing, reader, p.text)
	leasing, unready := context.WithCancelCause(leasing)
	defer unready(nil)
	turns := map[string]*turn{} // the last delivery of each key
	for leasing.Err() == nil {
		given, err := reader.Next(leasing, max(r.settings.Concurrency, 1))
		if err != nil || leasing.Err() != nil {
			for _, d := range given {
				work{h: h, r: r, place: p, Delivery: d}.settle(runs, mail.Settlement{Op: box.Return})
			}
			if leasing.Err() != nil {
				break
			}
			return failure(p, "", err)
		}
		for key, t := range turns {
			if t.over() {
				delete(turns, key)
			}
		}
		for _, d := range given {
			w := work{h, r, program, p, new(turn), d}
			w.take(turns)
			wg.Go(func() {
				defer close(w.turn.done)
				if err := w.do(runs, leasing); err != nil {
					unready(err)
				} else {
					r.setProblem(nil)
				}
			})
		}
	}
	return context.Cause(leasing)
}

// leaveRunner ends the session of a runner: what runs keeps its mail, and it is given no more.
func (h *handlers) leaveRunner(leasing context.Context, reader *mail.Session, path string) {
	if err := reader.Leave(context.WithoutCancel(leasing)); err != nil && !errors.Is(err, mail.ErrStopped) {
		h.log.Warn("a handler of a mailbox could not end its session", "box", path, "why", err)
	}
}

// handlerOf returns what handles the mails of a box.
func (h *handlers) handlerOf(name string, s wire.MailHandler) (handler.Handler, error) {
	if s.Post != "" {
		return newPost(s)
	}
	t, err := proto.ParseTarget(name)
	if err != nil {
		return nil, err
	}
	return h.programs.Program(t.Name, s)
}
