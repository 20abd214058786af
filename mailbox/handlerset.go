package mailbox

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// checkHandler checks the handler that a box is to have.
func (h *handlers) checkHandler(k *mail.Broker, p place, n notes) error {
	s := n.Handler
	switch err := n.check(); {
	case err != nil || s == nil:
		return err
	case p.kind != wire.BoxMailbox:
		return invalid("a topic has no handler: let a subscription be read, or publish to a mailbox that has one")
	case len(s.Exec) > 0 && s.Post != "":
		return invalid("exec and post are both given: a mailbox has one handler")
	case s.Concurrency < 0 || s.Concurrency > maxConcurrency:
		return invalid("concurrency %d: must be from 0, the default 1, to %d", s.Concurrency, maxConcurrency)
	case s.Timeout < 0 || time.Duration(s.Timeout) > box.MaxLease:
		return invalid("timeout %s: must be at most 12 hours, the longest lease", s.Timeout)
	case s.Post != "" && len(s.Env)+len(s.RunAs)+len(s.Dir)+len(s.Profile) > 0:
		return invalid("post runs no program: leave out env, run_as, dir and profile")
	}
	if _, err := h.handlerOf(p.name, *s); err != nil {
		return fmt.Errorf("%s: %w", p.text, err)
	}
	return h.checkForward(k, p, s.Forward)
}

// check checks what the allow lists and the handler must be together. A change of the lists
// checks no more: a mailbox can be closed whatever has become of its handler meanwhile.
func (n notes) check() error {
	if size := len(n.encode()); size > box.MaxNotes {
		return invalid("the allow lists and the handler have %d bytes together: the limit is %d", size, box.MaxNotes)
	}
	if n.Handler == nil || n.Handler.Profile != "dangerous" {
		return nil
	}
	for _, a := range n.Allow {
		if a == "*" || strings.HasPrefix(a, "role:") {
			return fmt.Errorf("%w: the program is dangerous: allow mail from peers by name or id, not from %q", wire.ErrDenied, a)
		}
	}
	return nil
}

// maxConcurrency is how many mails a handler may have at once.
const maxConcurrency = 256

// checkForward checks the box that is to get what comes of the mails of p.
func (h *handlers) checkForward(k *mail.Broker, p place, name string) error {
	if name == "" {
		return nil
	}
	to, err := h.places.findTarget(name)
	switch {
	case err != nil:
		return fmt.Errorf("forward: %w", err)
	case to.name == p.name:
		return invalid("forward: %s would get its own mail: name another box", p.text)
	case to.home == h.self && !k.Has(to.name):
		return fmt.Errorf("forward: %w", noBox(to, ""))
	}
	return nil
}

// changeHandler sets the handler, or changes it, or removes it.
func (n *notes) changeHandler(s *wire.MailHandler) error {
	switch {
	case s == nil:
	case len(s.Exec) > 0 || s.Post != "":
		h := *s
		h.Env = withValues(s.Env, n.Handler)
		n.Handler = &h
	case reflect.DeepEqual(*s, wire.MailHandler{}):
		n.Handler = nil
	case n.Handler == nil:
		return invalid("the mailbox has no handler that could change: give exec or post, too")
	default:
		h := *n.Handler
		h.Forward, h.Concurrency, h.Timeout = cmp.Or(s.Forward, h.Forward), cmp.Or(s.Concurrency, h.Concurrency), cmp.Or(s.Timeout, h.Timeout)
		h.Profile, h.RunAs, h.Dir = cmp.Or(s.Profile, h.Profile), cmp.Or(s.RunAs, h.RunAs), cmp.Or(s.Dir, h.Dir)
		if len(s.Env) > 0 {
			h.Env = withValues(s.Env, n.Handler)
		}
		n.Handler = &h
	}
	return nil
}

// withValues returns env with the values that old has for variables named without one: no view
// of a handler shows them, so that a caller that writes back what was shown does not have them.
func withValues(env []string, old *wire.MailHandler) []string {
	out := slices.Clone(env)
	for i, name := range out {
		if old == nil || strings.Contains(name, "=") {
			continue
		}
		for _, entry := range old.Env {
			if strings.HasPrefix(entry, name+"=") {
				out[i] = entry
			}
		}
	}
	return out
}

// shownHandler returns a handler without the values of its variables.
func shownHandler(s *wire.MailHandler) *wire.MailHandler {
	if s == nil {
		return nil
	}
	h := *s
	h.Env = make([]string, len(s.Env))
	for i, entry := range s.Env {
		h.Env[i], _, _ = strings.Cut(entry, "=")
	}
	return &h
}

// handlerText returns what a handler does, for the audit.
func handlerText(s *wire.MailHandler) string {
	what := "none"
	switch {
	case s == nil:
	case s.Post != "":
		what = "post " + s.Post
	case len(s.Exec) > 0:
		what = "exec " + s.Exec[0]
	}
	if s != nil && s.Forward != "" {
		what += ", forward " + s.Forward
	}
	return what
}
