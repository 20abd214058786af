package mailbox

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// A stoppedError is why a runner does not run.
type stoppedError struct{ problem wire.Note }

// stopped returns the error of a runner with a problem.
func stopped(code wire.NoteCode, a wire.NoteArgs) error {
	return &stoppedError{wire.Note{Code: code, NoteArgs: a}}
}

// Error returns the code and its arguments, for the log.
func (e *stoppedError) Error() string {
	n := &e.problem
	said := append([]string{string(n.Code), n.Other, n.Refusal, n.Detail}, n.Names...)
	return strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), ": ")
}

// unread returns why a runner cannot read its box or its subscription.
func unread(p place, sub string, err error) error {
	if held, ok := errors.AsType[*box.HeldError](err); ok {
		return stopped(wire.ProblemHeld, wire.NoteArgs{Names: []string{held.Reader}})
	}
	return failure(p, sub, err)
}

// setProblem keeps why the runner does not run, nil if it does, and reports whether that changed.
func (r *runner) setProblem(err error) (changed bool) {
	var problem *wire.Note
	if e, ok := errors.AsType[*stoppedError](err); ok {
		problem = &e.problem
	} else if err != nil {
		problem = &wire.Note{Code: wire.ProblemUnread, NoteArgs: wire.NoteArgs{Refusal: string(wire.CodeOf(err)), Detail: err.Error()}}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = !reflect.DeepEqual(r.problem, problem)
	r.problem = problem
	return changed
}

// problemOf returns why the handler of a box, or a subscription that delivers into a box, does not
// run; nil: it runs.
func (h *runners) problemOf(name, sub string) *wire.Note {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.running[runnerKey(name, sub)]
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}
