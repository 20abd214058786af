// Package handler defines the contract between the inbox, which runs tasks, and the
// programs and functions that do their work. It knows nothing of the wire, the store or
// leases.
//
//	inbox ──Run──▶ Handler ──Result──▶ inbox
//	                 ├─ agent.Discard, Echo, Hash   built in
//	                 ├─ agent/command               a program of this machine
//	                 └─ a function of a Go program that embeds a node
//
// A handler returns only when nothing of its run is left: no process, no goroutine, no
// open file. Therefore CANCELLED means stopped.
package handler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/balefire/balefire/proto"
)

// The reasons for which the context of a run ends, as returned by context.Cause.
var (
	ErrTimeout   = errors.New("the run timed out")
	ErrCancelled = errors.New("the task was cancelled")
	ErrStopping  = errors.New("the node is stopping")
	ErrLeaseLost = errors.New("the lease of the task was lost")
)

// A Handler does the work of tasks of one kind. Any number of goroutines may call it
// at once. Call it through [Call].
type Handler interface {
	// Run does the task and returns when nothing of the run is left, also if ctx ends:
	// context.Cause(ctx) is then [ErrTimeout], [ErrCancelled], [ErrStopping] or
	// [ErrLeaseLost].
	Run(ctx context.Context, r *Run) *Result
}

// A Func is a function that is a [Handler].
type Func func(ctx context.Context, r *Run) *Result

// Run calls f.
func (f Func) Run(ctx context.Context, r *Run) *Result { return f(ctx, r) }

// A Prober is a handler that can tell whether an earlier start with an unknown outcome
// took effect.
type Prober interface {
	Probe(ctx context.Context, r *Run) ProbeResult
}

// An Admitter is a handler that can refuse a task by its content alone. Such a task is
// refused when it arrives, before any start.
type Admitter interface {
	// Admit returns why no start of a task with this content can succeed.
	Admit(content *proto.Content) error
}

// A Run is one start of a handler.
type Run struct {
	ID        proto.TaskID
	Attempt   int       // number of the start, from 1; a start undone by a graceful stop does not count
	Epoch     proto.Seq // fencing token: a later grant has a higher one
	Origin    proto.PeerID
	Content   *proto.Content    // kind, arguments, keys, labels; its body is in Body
	Body      io.Reader         // never nil inside a handler; checked against the signed digest before the start
	BodySize  int64             // bytes
	Env       map[string]string // variables that describe what is handled, in place of those of a task; nil: those
	Dir       string            // private folder of this run, created and removed by the caller; may be empty
	MaxOutput int64             // limit for output, bytes; 0: the handler's own limit
	Quota     Quota             // disk space for its output; nil: no limit
	BodyQuota Quota             // disk space for a copy of its body in Dir; nil: no limit
	Kill      <-chan struct{}   // closed after the context ended to stop at once, without grace; nil: never
}

// Key identifies the work for deduplication: the idempotency key of the task, or its id.
func (r *Run) Key() string {
	if key := r.Content.GetIdempotencyKey(); key != "" {
		return key
	}
	return r.ID.String()
}

// A Quota is the disk space that files of one run may take: its output, or a copy of its
// body.
type Quota interface {
	// Reserve asks for n more bytes. It returns false when the disk is at its reserve.
	Reserve(n int64) bool
	// Settle reports how many of the reserved bytes were written.
	Settle(taken, written int64)
}

// A Result states how a run ended.
type Result struct {
	Outcome     Outcome
	Code        int    // exit or status code; -1: none
	Output      []byte // at most proto.MaxInlineBody bytes; more is cut
	File        string // instead of Output: a file in Run.Dir that contains it
	Size        int64  // bytes of the output that were kept
	Digest      []byte // SHA-256 of File; empty: not computed yet
	ContentType string // of the output
	Truncated   bool   // there was more output than was kept
	Stderr      string // diagnostics, or a stack; the last proto.MaxStderr bytes are kept
	Reason      string // why it did not succeed, or why its output was cut; for people
}

// An Outcome states what a result means for the task.
type Outcome byte

// The outcomes. The zero Outcome is none of them, so that an unset result is not a
// success.
const (
	Success   Outcome = iota + 1 // the work is done
	Retry                        // not done; another attempt may succeed
	Fail                         // not done, and never will be
	Timeout                      // stopped because its time was up
	Cancelled                    // stopped at the caller's request
	Crashed                      // ended by a signal or a panic; treated like Retry
	Unready                      // nothing was started because of this machine, not of the task: retried later, without using up an attempt
	NoSpace                      // stopped because the disk had no space for its output: an abandon
)

var outcomeNames = [...]string{"none", "success", "retry", "fail", "timeout", "cancelled", "crashed", "unready", "no space"}

// String returns the outcome in lower case.
func (o Outcome) String() string {
	if int(o) >= len(outcomeNames) {
		return fmt.Sprintf("outcome(%d)", o)
	}
	return outcomeNames[o]
}

// A ProbeResult is the result of a [Prober].
type ProbeResult byte

// The results of a probe. The zero value is unknown: the caller's policy decides what
// follows from it, never a guess.
const (
	Unknown ProbeResult = iota
	Done
	NotDone
	NotAsked // because of this machine: it is asked again later, while the task's time is not over
)

// String returns the result in lower case.
func (p ProbeResult) String() string {
	switch p {
	case Done:
		return "done"
	case NotDone:
		return "not done"
	case NotAsked:
		return "not asked"
	}
	return "unknown"
}

// Call runs h once. A panic of the handler, or a nil result, ends only its own run, as
// Crashed (S16).
func Call(ctx context.Context, h Handler, r *Run) (res *Result) {
	if r.Body == nil {
		r.Body, r.BodySize = strings.NewReader(""), 0
	}
	defer func() {
		if p := recover(); p != nil {
			stack := debug.Stack()
			res = &Result{
				Outcome: Crashed, Code: -1, Reason: fmt.Sprintf("the handler panicked: %v", p),
				Stderr: string(stack[:min(len(stack), proto.MaxStderr)]),
			}
		}
	}()
	if res = h.Run(ctx, r); res == nil {
		res = &Result{Outcome: Crashed, Code: -1, Reason: "the handler returned nothing"}
	}
	return res
}

// Stopped returns the outcome of a run that its context ended, given the cause: Timeout
// or Cancelled.
func Stopped(cause error) Outcome {
	if errors.Is(cause, ErrTimeout) || errors.Is(cause, context.DeadlineExceeded) {
		return Timeout
	}
	return Cancelled
}
