package mailbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

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
	problem string // why it does not run
}

func (r *runner) setProblem(err error) (changed bool) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = r.problem != text
	r.problem = text
	return changed
}

// runnerKey names the runner of a mailbox or of a subscription.
func runnerKey(name, sub string) string { return name + "/" + sub }

// problemOf returns why the handler of a box, or a subscription that delivers into a box, does not
// run, or "".
func (h *runners) problemOf(name, sub string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.running[runnerKey(name, sub)]
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// runHandlers runs the handlers that the settings of the boxes name, until ctx is done. What
// runs then is stopped, and its mail is given back for nothing.
func (b *Boxes) runHandlers(ctx context.Context, k *mail.Broker) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	runs, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(handler.ErrStopping)
	switch err := b.rules.read(ctx, k); {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("mailbox: %w", err)
	}
	for {
		b.matchHandlers(runs, &wg)
		select {
		case <-ctx.Done():
			return nil
		case <-b.rules.changed:
		}
	}
}

// matchHandlers starts and stops runners, so that they are those that the settings name.
func (b *Boxes) matchHandlers(runs context.Context, wg *sync.WaitGroup) {
	wanted := map[string]*runner{}
	for name, n := range b.rules.get() {
		if n.Handler != nil {
			wanted[runnerKey(name, "")] = &runner{name: name, settings: *n.Handler}
		}
		for sub, to := range n.to {
			wanted[runnerKey(name, sub)] = &runner{name: name, sub: sub, settings: wire.MailHandler{Forward: to}}
		}
	}
	h := b.runners
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, r := range h.running {
		if w := wanted[key]; w == nil || !reflect.DeepEqual(w.settings, r.settings) {
			r.stop()
			delete(h.running, key)
		}
	}
	for key, r := range wanted {
		if h.running[key] != nil {
			continue
		}
		var leasing context.Context
		leasing, r.stop = context.WithCancel(runs)
		h.running[key] = r
		wg.Go(func() {
			defer r.stop()
			b.serve(runs, leasing, r)
		})
	}
}

// serve reads a box or a subscription for its runner until leasing ends, and returns when nothing
// runs.
func (b *Boxes) serve(runs, leasing context.Context, r *runner) {
	session, says := b.serveSession, "a mailbox has a handler that cannot run; its mail waits"
	if r.sub != "" {
		session, says = b.serveForward, "a subscription cannot deliver into its box now; its mail waits"
	}
	for leasing.Err() == nil {
		err := session(runs, leasing, r)
		if leasing.Err() != nil {
			return
		}
		if r.setProblem(err) && err != nil {
			b.cfg.Logger.Warn(says, "box", place{text: b.places.text(r.name)}.path(r.sub), "why", err)
		}
		_ = wait(leasing, time.After(handlerRetry)) // the loop looks at leasing
	}
}

// serveSession is one session of a runner. It returns why no other one should begin at once.
func (b *Boxes) serveSession(runs, leasing context.Context, r *runner) error {
	h, err := b.handlerOf(r.name, r.settings)
	if err == nil {
		err = b.canForward(leasing, r)
	}
	if err != nil {
		return err
	}
	p, k, err := b.places.subscribed(r.name, "")
	if err != nil {
		return err
	}
	reader, err := k.Read(leasing, mail.Reading{Box: p.name, Reader: "handler", Credit: max(r.settings.Concurrency, 1)})
	if err != nil {
		return failure(p, "", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer b.leaveRunner(leasing, reader, p.text)
	leasing, unready := context.WithCancelCause(leasing)
	defer unready(nil)
	turns := map[string]*turn{} // the last delivery of each key
	for leasing.Err() == nil {
		given, err := reader.Next(leasing, max(r.settings.Concurrency, 1), nil)
		if err != nil || leasing.Err() != nil {
			for _, d := range given {
				work{b: b, r: r, place: p, Delivery: d}.settle(runs, mail.Settlement{Op: box.Return})
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
			w := work{b, r, h, p, new(turn), d}
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
func (b *Boxes) leaveRunner(leasing context.Context, reader *mail.Session, path string) {
	if err := reader.Leave(context.WithoutCancel(leasing)); err != nil && !errors.Is(err, mail.ErrStopped) {
		b.cfg.Logger.Warn("a handler of a mailbox could not end its session", "box", path, "why", err)
	}
}

// handlerOf returns what handles the mails of a box.
func (b *Boxes) handlerOf(name string, s wire.MailHandler) (handler.Handler, error) {
	if s.Post != "" {
		return newPost(s)
	}
	t, err := proto.ParseTarget(name)
	if err != nil {
		return nil, err
	}
	return b.parts.Programs.Program(t.Name, s)
}
