package inbox

import (
	"context"
	"errors"
	"io"

	"github.com/balefire/balefire/proto"
)

// Why a handler's context ends: what context.Cause returns.
var (
	ErrTimeout   = errors.New("inbox: the run is out of time")
	ErrCancelled = errors.New("inbox: the task was cancelled")
	ErrStopping  = errors.New("inbox: the node is stopping")
	ErrLeaseLost = errors.New("inbox: the lease of the task was lost")
)

// ErrNoRoom says that the disk has no room for a result. The task keeps what it wrote
// for a while, and then ends without.
var ErrNoRoom = errors.New("inbox: no room for the result")

// A Handler does the work of one kind.
type Handler interface {
	// Run does the task and returns when nothing of it runs any more, also when
	// ctx is cancelled. context.Cause(ctx) says why: [ErrTimeout],
	// [ErrCancelled], [ErrStopping] or [ErrLeaseLost]. It never returns nil.
	Run(ctx context.Context, r *Run) *Result
}

// A Prober is a handler that can tell whether an earlier start, of which the end
// is unknown, had its effect. Kinds with OnCrash probe need one.
type Prober interface {
	Probe(ctx context.Context, r *Run) Probe
}

// A Run is one start of a handler.
type Run struct {
	ID       proto.TaskID
	Attempt  uint32    // counts starts from 1; a start that a graceful stop undid does not count
	Epoch    proto.Seq // fences: a later grant has a higher one
	Origin   proto.PeerID
	Content  *proto.Content // kind, arguments, keys, labels; its body is in Body
	Body     io.Reader      // never nil; checked against the signed digest before the start
	BodySize int64
	Kill     <-chan struct{} // closed when the handler must end at once, without grace
}

// A Result is how a run ended.
type Result struct {
	Outcome     Outcome
	ExitCode    int32
	Output      []byte // the result, cut after proto.MaxInlineBody; larger ones go into File
	File        string // a file with the result, which the receiver of the result removes
	Size        uint64 // of the result in File
	Digest      []byte // SHA-256 of the result in File
	ContentType string
	Truncated   bool   // there was more output than its limit
	Stderr      string // the last of it; more than proto.MaxStderr is cut from the front
	Reason      string // why it did not succeed, or why its output was cut
}

// An Outcome is the kind of a run's end.
type Outcome byte

// The ends of a run.
const (
	Success Outcome = iota + 1
	Retry           // not this time: tried again while attempts are left
	Fail            // no for good
	Crashed         // the handler died: as Retry
	Stopped         // it ended because it was told to, and had no effect that it would call success
	Unready         // nothing was started, and that is not the task's doing: tried later, no attempt is spent
	NoRoom          // stopped, since its output found no room on the disk: an abandon

	unusable Outcome = 255 // the task cannot be given to any handler, now or later
)

// A Probe is the answer of a [Prober].
type Probe byte

// What a probe can find.
const (
	Unknown Probe = iota
	Done
	NotDone
)
