// Package handler defines what does the work of a task on a node: the one contract
// between the inbox, which calls a handler, and the programs and functions that are
// one. It knows nothing of the wire, the store or leases.
//
//	inbox ──Run──▶ Handler ──Result──▶ inbox
//	                 ├─ agent.Discard, Echo, Hash   built in
//	                 ├─ agent/command               a program of this machine
//	                 └─ a function of a Go program that embeds a node
//
// A handler returns only when nothing of its run is left: no process, no
// goroutine, no open file. That is what lets CANCELLED mean stopped.
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

// Why the context of a run ends, as context.Cause returns it.
var (
	ErrTimeout   = errors.New("the run is out of time")
	ErrCancelled = errors.New("the task was cancelled")
	ErrStopping  = errors.New("the node is stopping")
	ErrLeaseLost = errors.New("the lease of the task was lost")
)

// A Handler does the work of tasks of one kind. Any number of goroutines may call it
// at once. Call it through [Call].
type Handler interface {
	// Run does the task and returns when nothing of the run is left, also when ctx
	// ends: context.Cause(ctx) is [ErrTimeout], [ErrCancelled], [ErrStopping] or
	// [ErrLeaseLost].
	Run(ctx context.Context, r *Run) *Result
}

// Func is a function as a [Handler].
type Func func(ctx context.Context, r *Run) *Result

// Run calls f.
func (f Func) Run(ctx context.Context, r *Run) *Result { return f(ctx, r) }

// A Prober is a handler that can tell whether an earlier start, of which the end is
// unknown, had its effect.
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
	Attempt   int       // counts starts from 1; a start that a graceful stop undid does not count
	Epoch     proto.Seq // fences: a later grant has a higher one
	Origin    proto.PeerID
	Content   *proto.Content  // kind, arguments, keys, labels; its body is in Body
	Body      io.Reader       // never nil inside a handler; checked against the signed digest before the start
	BodySize  int64           // bytes
	Dir       string          // folder of this run alone, made and removed by the caller; may be empty
	MaxOutput int64           // bytes of output that the task takes; 0: as many as the handler gives
	Quota     Quota           // the disk space that its output may take; nil: no limit
	Kill      <-chan struct{} // closed, after the context has ended: stop at once, without grace; nil: never
}

// Key identifies the work for whoever must not do it twice: the idempotency key of the
// task, or its id.
func (r *Run) Key() string {
	if key := r.Content.GetIdempotencyKey(); key != "" {
		return key
	}
	return r.ID.String()
}

// A Quota is the disk space that the output of one run may take.
type Quota interface {
	// Reserve asks for n more bytes. It returns false when the disk is at its reserve.
	Reserve(n int64) bool
	// Settle says how many of the bytes that were taken were written.
	Settle(taken, written int64)
}

// A Result is how a run ended.
type Result struct {
	Outcome     Outcome
	Code        int    // exit or status code; -1: there is none
	Output      []byte // at most proto.MaxInlineBody bytes; more is cut
	File        string // instead of Output: a file with it, in Run.Dir
	Size        int64  // bytes of the output that were kept
	Digest      []byte // SHA-256 of File; empty: not computed yet
	ContentType string // of the output
	Truncated   bool   // there was more output than was kept
	Stderr      string // diagnostics, or a stack; the last proto.MaxStderr bytes are kept
	Reason      string // why it did not succeed, or why its output was cut, for a person
}

// An Outcome says what a result means for the task.
type Outcome byte

// The outcomes. The zero Outcome is none of them, so that a result that nobody set
// is no success.
const (
	Success   Outcome = iota + 1 // the work is done
	Retry                        // not done; another attempt may succeed
	Fail                         // not done, and never will be
	Timeout                      // stopped because its time was up
	Cancelled                    // stopped because the caller asked for it
	Crashed                      // ended by a signal or a panic: as Retry
	Unready                      // nothing was started, for a reason of this machine and not of the task: tried later, no attempt is spent
	NoSpace                      // stopped because its output found no space on the disk: an abandon
)

var outcomeNames = [...]string{"none", "success", "retry", "fail", "timeout", "cancelled", "crashed", "unready", "no space"}

// String returns the outcome in lower case.
func (o Outcome) String() string {
	if int(o) >= len(outcomeNames) {
		return fmt.Sprintf("outcome(%d)", o)
	}
	return outcomeNames[o]
}

// A ProbeResult is the answer of a [Prober].
type ProbeResult byte

// What a probe can find. Not knowing is the zero value: what follows from it is the
// caller's policy, never a guess.
const (
	Unknown ProbeResult = iota
	Done
	NotDone
)

// String returns the answer in lower case.
func (p ProbeResult) String() string {
	switch p {
	case Done:
		return "done"
	case NotDone:
		return "not done"
	}
	return "unknown"
}

// Call runs h once. A panic of the handler, or a nil result, ends its run as Crashed
// and nothing else (S16).
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

// Stopped returns the outcome of a run that was ended by its context, with the cause of
// that: Timeout if the time was up, else Cancelled.
func Stopped(cause error) Outcome {
	if errors.Is(cause, ErrTimeout) || errors.Is(cause, context.DeadlineExceeded) {
		return Timeout
	}
	return Cancelled
}
