package inbox

import (
	"context"
	"errors"
	"io"

	"github.com/balefire/balefire/proto"
)

// Why a handler's context ended, as returned by context.Cause.
var (
	ErrTimeout   = errors.New("inbox: the run is out of time")
	ErrCancelled = errors.New("inbox: the task was cancelled")
	ErrStopping  = errors.New("inbox: the node is stopping")
	ErrLeaseLost = errors.New("inbox: the lease of the task was lost")
)

// ErrNoRoom is returned when the disk has no room for a result. The task keeps its output
// for a while, and then ends without it.
var ErrNoRoom = errors.New("inbox: no room for the result")

// A Handler runs the tasks of one kind.
type Handler interface {
	// Run runs the task and returns when nothing of it is running any more, even when ctx
	// is cancelled. context.Cause(ctx) is [ErrTimeout], [ErrCancelled], [ErrStopping] or
	// [ErrLeaseLost]. It never returns nil.
	Run(ctx context.Context, r *Run) *Result
}

// A Prober is a handler that can tell whether an earlier start with an unknown end had its
// effect. Kinds with OnCrash probe need one.
type Prober interface {
	Probe(ctx context.Context, r *Run) Probe
}

// A Run is one start of a handler.
type Run struct {
	ID       proto.TaskID
	Attempt  uint32    // counts starts from 1; a start undone by a graceful stop does not count
	Epoch    proto.Seq // fences: a later grant has a higher one
	Origin   proto.PeerID
	Content  *proto.Content // kind, arguments, keys, labels; its body is in Body
	Body     io.Reader      // never nil; verified against the signed digest before the start
	BodySize int64
	Kill     <-chan struct{} // closed when the handler must end at once, without grace
}

// A Result is the result of a run.
type Result struct {
	Outcome     Outcome
	ExitCode    int32
	Output      []byte // truncated to proto.MaxInlineBody; larger output is in File
	File        string // file with the output, which the receiver of the result removes
	Size        uint64 // of File
	Digest      []byte // SHA-256 of File
	ContentType string
	Truncated   bool   // the output exceeded its limit
	Stderr      string // the end of it, at most proto.MaxStderr
	Reason      string // why it did not succeed, or why its output was truncated
}

// An Outcome is how a run ended.
type Outcome byte

// The outcomes of a run.
const (
	Success Outcome = iota + 1
	Retry           // failed; retried while attempts are left
	Fail            // failed for good
	Crashed         // the handler died: treated like Retry
	Stopped         // it was told to stop, and does not report success
	Unready         // nothing was started, through no fault of the task: retried later, no attempt is spent
	NoRoom          // stopped because the disk had no room for its output: an abandon

	unusable Outcome = 255 // no handler can run the task, now or later
)

// A Probe is the answer of a [Prober].
type Probe byte

// The answers of a probe.
const (
	Unknown Probe = iota
	Done
	NotDone
)
