// Package agent says what a handler is: the thing that does the work of a task
// on this node. It knows nothing of the wire, the store or leases; whoever
// calls a handler has made sure that it may start, and keeps what it returns.
//
//	inbox ──Run──▶ Handler ──Result──▶ inbox
//	                 ├─ agent.Discard, Echo, Hash   built in
//	                 └─ agent/command               a program of this machine
//
// A handler returns only when nothing of its run is left: no process, no
// goroutine, no open file. That is what lets CANCELLED mean stopped.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
)

// A Handler does the work of tasks of one kind. It is called by any number of
// goroutines at once and ends early when ctx does. Call it through [Call].
type Handler interface {
	Run(ctx context.Context, r Run) Result
}

// A Prober can say whether the work behind an idempotency key was done, after
// a crash in the middle of it.
type Prober interface {
	Probe(ctx context.Context, key string) ProbeResult
}

// A Run is one start of a handler.
type Run struct {
	ID             string // of the task
	Attempt        int    // from 1
	Epoch          string // of the lease, for resources that fence
	Kind           string
	Origin         string // peer that signed the task
	IdempotencyKey string
	Traceparent    string // W3C trace context; may be empty
	ContentType    string
	Args           []string
	Env            map[string]string // wishes of the task; a handler takes those it allows
	Body           io.Reader         // never nil inside a handler; must not block for ever
	BodySize       int64             // bytes
	Dir            string            // folder of this run alone, made and removed by the caller; may be empty
	MaxOutput      int64             // bytes of output that the task takes; 0: as many as the handler gives
	Quota          Quota             // the disk that its output may take; nil: no limit
	Progress       func(string)      // never nil inside a handler; a short line for a person
	Kill           <-chan struct{}   // closed, after the context has ended: stop at once, without grace; nil: never
}

// A Result is how a run ended.
type Result struct {
	Outcome    Outcome
	Code       int    // exit or status code; -1 when there is none
	Output     []byte // at most MaxInline bytes
	OutputFile string // instead of Output: a file in Run.Dir
	OutputSize int64  // bytes kept
	Truncated  bool   // there was more output than was kept
	Stderr     string // the last 4 KiB of diagnostics, or the stack
	Err        string // why it did not succeed, for a person
}

// An Outcome says what a result means for the task.
type Outcome int

// The outcomes. The zero Outcome is none of them, so that a result nobody set
// is no success.
const (
	Success   Outcome = iota + 1 // the work is done
	Retry                        // not done; another attempt may succeed
	Fail                         // not done, and never will be
	Timeout                      // stopped because its time was up
	Cancelled                    // stopped because the caller said so
	Crashed                      // ended without a word: a signal, a panic
	Unready                      // nothing was started, for a reason that is this machine's and not the run's
	NoSpace                      // stopped because its output found no room on the disk
)

var outcomeNames = [...]string{"none", "success", "retry", "fail", "timeout", "cancelled", "crashed", "unready", "no room"}

// String returns the outcome in lower case.
func (o Outcome) String() string {
	if o < 0 || int(o) >= len(outcomeNames) {
		return fmt.Sprintf("outcome(%d)", int(o))
	}
	return outcomeNames[o]
}

// A ProbeResult is the answer of a probe.
type ProbeResult int

// The verdicts. Not knowing is the zero value: what follows from it is the
// caller's policy, never a guess.
const (
	Unknown ProbeResult = iota
	Done
	NotDone
)

// String returns the verdict in lower case.
func (v ProbeResult) String() string {
	switch v {
	case Done:
		return "done"
	case NotDone:
		return "not done"
	}
	return "unknown"
}

// MaxStderr is how many bytes of diagnostics a result keeps, the last ones.
const MaxStderr = 4 << 10

// Call runs h with r made whole. A panic of the handler ends its run as
// Crashed, with the stack, and nothing else (S16).
func Call(ctx context.Context, h Handler, r Run) (res Result) {
	if r.Body == nil {
		r.Body, r.BodySize = strings.NewReader(""), 0
	}
	if r.Progress == nil {
		r.Progress = func(string) {}
	}
	defer func() {
		if p := recover(); p != nil {
			stack := debug.Stack()
			res = Result{
				Outcome: Crashed, Code: -1, Err: fmt.Sprintf("handler panicked: %v", p),
				Stderr: string(stack[:min(len(stack), MaxStderr)]),
			}
		}
	}()
	return h.Run(ctx, r)
}

// Stopped returns the outcome of a run that was ended by its context: Timeout
// if the time was up, else Cancelled.
func Stopped(cause error) Outcome {
	if errors.Is(cause, context.DeadlineExceeded) {
		return Timeout
	}
	return Cancelled
}
