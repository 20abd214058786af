package inbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A Leased is a task of a shared queue that its home has granted to this node. It is
// verified: signed by its origin for the queue, and sealed for this node.
type Leased struct {
	ID        proto.TaskID
	Kind      string
	Origin    proto.PeerID
	Home      proto.PeerID // who granted it
	Queue     string
	Mode      proto.Mode
	Delegates []proto.PeerID // whom the handler must allow too
	Envelope  *proto.Envelope
	Size      uint64   // bytes of its body
	Key       [32]byte // of its content, for a streamed body
	Body      string   // file of its streamed body; empty: none
	Attempts  uint32   // that it asks for; 0: the handler's default

	Interrupted *LeaseStart   // it ran when the node died: its handler is only probed
	askAt       time.Duration // by the monotonic clock: it is not probed before
	since       time.Duration // by the monotonic clock: it has waited for a slot since then
}

// notAfter returns when the time of the task is over, in Unix milliseconds; 0: unknown.
func (l *Leased) notAfter() int64 {
	h, err := proto.ParseHeader(l.Envelope.GetHeader())
	if err != nil {
		return 0
	}
	return h.NotAfter
}

// Leases controls the start of granted tasks and takes their ends.
type Leases interface {
	// Ready reports a free slot for a task. It returns once the start is durable; false:
	// the task must not start here any more.
	Ready(ctx context.Context, id proto.TaskID, onCrash OnCrash) (LeaseStart, bool)
	// Ended takes the end of a run that Ready allowed. It returns once that is durable, or
	// the node stops for good.
	Ended(ctx context.Context, id proto.TaskID, e LeaseEnd)
	// Probed takes the answer of a handler about a task that ran when the node died, with
	// the result to deliver if it is done.
	Probed(ctx context.Context, id proto.TaskID, found handler.ProbeResult, o *proto.Outcome)
}

// A LeaseStart permits a start.
type LeaseStart struct {
	Epoch   proto.Seq
	Attempt uint32
}

// A LeaseEnd is the end of a run under a lease.
type LeaseEnd struct {
	Outcome    *proto.Outcome // nil: the lease is released
	File       string         // contains the result if that is too large for the outcome; the caller of Ended removes it
	Cause      proto.ReleaseCause
	Reason     string
	RetryAfter time.Duration // 0: the home decides

	MaxAttempts uint32 // set by the handler
}

// partLease distinguishes the run of a lease from the custody of the same task, which may
// also be here.
const partLease backlog.Part = 0x6c

// A leaseQueue holds the leases that wait for a slot, in the order in which they came.
type leaseQueue struct {
	mu      sync.Mutex
	waiting []Leased
}

// Bounds of the leases that wait for a slot.
const (
	waitingAhead    = 64       // of each queue, beyond as many as there are slots; its home grants no more
	waitingQueues   = 8        // of all queues: as many as so many of them may have
	maxWaitingBytes = 32 << 20 // of their envelopes
)

// Leasable returns zero if this node would run a task like l now, and otherwise why not. Each
// queue has a limit of its own for what waits here: one whose tasks end fast is granted many
// ahead, which must not keep out another one.
func (in *Inbox) Leasable(l *Leased) proto.Code {
	h := in.handlers.find(l.Kind)
	switch {
	case in.slots.halted():
		return proto.CodeDraining
	case h == nil, in.handlers.suspendedReason(l.Kind) != "":
		return proto.CodeNoHandler
	case !h.allowsAll(l.Origin, l.Delegates, in.parts.Members):
		return proto.CodeDenied
	case h.MaxBody > 0 && l.Size > h.MaxBody:
		return proto.CodeTooLarge
	case !in.leases.hasRoom(l, in.cfg.Slots+waitingAhead):
		return proto.CodeBusy
	}
	return proto.CodeOK
}

// hasRoom reports whether l may wait too, where limit of a queue may.
func (g *leaseQueue) hasRoom(l *Leased, limit int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	all, same, bytes := 0, 0, len(l.Envelope.GetBody())
	for _, x := range g.waiting {
		if x.Interrupted != nil {
			continue
		}
		all++
		bytes += len(x.Envelope.GetBody())
		if x.Queue == l.Queue {
			same++
		}
	}
	return same < limit && all < waitingQueues*limit && bytes <= maxWaitingBytes
}

// Lease queues a granted task for a slot of its kind. One that is queued already keeps its
// place.
func (in *Inbox) Lease(l Leased) {
	g := in.leases
	g.mu.Lock()
	if !slices.ContainsFunc(g.waiting, func(x Leased) bool { return x.ID == l.ID }) {
		l.since = in.cfg.Clock.Mono()
		g.waiting = append(g.waiting, l)
	}
	g.mu.Unlock()
	in.slots.notify()
}

// How long a lease may wait for a slot.
const (
	overdueAfter = time.Second // if its queue has as many others here as there are slots
	stuckAfter   = time.Minute // if it has fewer: tasks of others take the slots
)

// Overdue returns the waiting leases that should go back to their homes, so that other nodes
// can run them: they have waited for longer than a second, and those of their queue that run
// or have waited as long take all slots, or for longer than a minute. One with a body that
// another node would have to fetch stays in the second case.
func (in *Inbox) Overdue() (ids []proto.TaskID) {
	before := map[string]int{} // by queue
	for _, j := range in.slots.running() {
		if j.lease != nil {
			before[j.lease.Queue]++
		}
	}
	g := in.leases
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.waiting {
		waited := in.cfg.Clock.Mono() - l.since
		if l.Interrupted != nil || waited <= overdueAfter {
			continue
		}
		if before[l.Queue]++; before[l.Queue] > in.cfg.Slots || waited > stuckAfter && l.Body == "" {
			ids = append(ids, l.ID)
		}
	}
	return ids
}

// StopLease ends the wait or the run of a granted task; cancelled: at an operator's
// request; hard: at once, without letting the handler finish.
func (in *Inbox) StopLease(id proto.TaskID, cancelled, hard bool) {
	g := in.leases
	g.mu.Lock()
	g.waiting = slices.DeleteFunc(g.waiting, func(x Leased) bool { return x.ID == id })
	g.mu.Unlock()
	if j := in.slots.find(backlog.Key{ID: id, Part: partLease}); j != nil {
		why := stopLease
		if cancelled {
			why = stopCancel
		}
		in.slots.stop(j, why, hard)
	}
}

// Working reports whether a granted task has a slot here, from before its start until its
// end was taken.
func (in *Inbox) Working(id proto.TaskID) bool {
	return in.slots.find(backlog.Key{ID: id, Part: partLease}) != nil
}

// startGranted gives a slot to the first waiting lease that may have one.
func (rn *runner) startGranted(jobCtx context.Context) bool {
	g := rn.leases
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, l := range g.waiting {
		h := rn.handlers.find(l.Kind)
		if h != nil && rn.handlers.suspendedReason(l.Kind) == "" && !rn.eligible(l.Kind) {
			continue
		}
		if h != nil && rn.askedLater(&l, h) {
			continue
		}
		j := rn.slots.take(backlog.Key{ID: l.ID, Part: partLease})
		if j == nil {
			continue // an earlier run of it has not ended yet
		}
		g.waiting = slices.Delete(g.waiting, i, i+1)
		j.kind, j.h, j.origin, j.lease = l.Kind, h, l.Origin, &l
		j.rec = &proto.Record{Kind: l.Kind, Mode: l.Mode, Peer: l.Origin[:], BodyBlob: l.Body, Options: &proto.TaskOptions{MaxAttempts: l.Attempts}}
		j.stored = &proto.Stored{Envelope: l.Envelope, Record: j.rec, Key: l.Key[:]}
		if l.Interrupted != nil {
			j.epoch, j.attempt = l.Interrupted.Epoch, l.Interrupted.Attempt
		}
		rn.slots.acquire(j, false)
		if l.Interrupted != nil {
			rn.spawn(func() error { rn.askLeased(jobCtx, j); return nil })
		} else {
			rn.spawn(func() error { rn.runLeased(jobCtx, j); return nil })
		}
		return true
	}
	return false
}

// askedLater reports whether l waits until its handler can be asked about it.
func (rn *runner) askedLater(l *Leased, h *registration) bool {
	return l.Interrupted != nil && h.OnCrash == OnCrashProbe && !rn.over(l.notAfter()) &&
		(rn.handlers.suspendedReason(l.Kind) != "" || rn.cfg.Clock.Mono() < l.askAt)
}

// runLeased runs a granted task once its home has permitted the start and the start is
// durable.
func (rn *runner) runLeased(jobCtx context.Context, j *job) {
	defer rn.dropJob(j)
	policy := OnCrashPark
	if j.h != nil {
		policy = j.h.OnCrash
	}
	start, ok := rn.granted.Ready(jobCtx, j.key.ID, policy)
	if !ok {
		return
	}
	rn.slots.number(j, start.Epoch, start.Attempt)
	began := rn.cfg.Clock.Now()
	switch {
	case j.h == nil:
		rn.granted.Ended(jobCtx, j.key.ID, unstarted("the node has no handler for "+j.kind+" any more"))
	case rn.handlers.suspendedReason(j.kind) != "":
		rn.granted.Ended(jobCtx, j.key.ID, unstarted(text(rn.handlers.suspendedReason(j.kind), proto.MaxReason)))
	default:
		res := rn.handle(jobCtx, j)
		why := rn.slots.release(j, len(res.Output))
		e := leaseEnd(res, why)
		if e.Cause == proto.CauseStopped && j.began.IsZero() {
			e.Cause, e.Reason = proto.Unstarted, "it was told to stop before its handler was called"
		}
		e.MaxAttempts = j.h.maxAttempts(j.rec.Options.GetMaxAttempts())
		if e.Outcome != nil {
			e.Outcome.StartedMs, e.Outcome.FinishedMs = began.UnixMilli(), rn.cfg.Clock.Now().UnixMilli()
		}
		rn.granted.Ended(jobCtx, j.key.ID, e)
		rn.removeResult(res)
	}
}

// askLeased probes the handler of a granted task that ran when the node died, whether it
// had its effect (I7).
func (rn *runner) askLeased(jobCtx context.Context, j *job) {
	defer rn.dropJob(j)
	found := handler.Unknown
	if j.probes() && rn.handlers.suspendedReason(j.kind) == "" {
		found = rn.ask(jobCtx, j)
	}
	why := rn.slots.release(j, 0)
	switch l := *j.lease; {
	case why == stopNode:
		return // probed again at the next start
	case found != handler.NotAsked:
	case why == notStopped && !rn.over(l.notAfter()):
		l.askAt = rn.cfg.Clock.Mono() + skipRetry
		rn.Lease(l)
		return
	default:
		found = handler.Unknown
	}
	done := outcomeOf(&handler.Result{Outcome: handler.Success}, proto.Success, proto.TaskProbed, "")
	rn.granted.Probed(jobCtx, j.key.ID, found, done.Outcome)
}

// refusedFor is how long a node that cannot start a granted task gets no new one of its
// kind.
const refusedFor = time.Minute

func unstarted(reason string) LeaseEnd {
	return LeaseEnd{Cause: proto.Unstarted, Reason: reason, RetryAfter: refusedFor}
}

// leaseEnd decides what to report to the home. The home decides about retries. A success
// stands even if the handler had been told to stop.
func leaseEnd(res *handler.Result, why stop) LeaseEnd {
	back := func(cause proto.ReleaseCause, otherwise string) LeaseEnd {
		return LeaseEnd{Cause: cause, Reason: text(cmp.Or(res.Reason, otherwise), proto.MaxReason)}
	}
	switch {
	case res.Outcome == handler.Success:
		cause, reason := cut(res)
		return outcomeOf(res, proto.Success, cause, reason)
	case res.Outcome == unusable:
		return outcomeOf(res, proto.DeadLetter, proto.TaskUnusable, res.Reason)
	case why == stopCancel:
		return outcomeOf(res, proto.Cancelled, proto.TaskCancelledRunning, "")
	case why == stopNode:
		return LeaseEnd{Cause: proto.CauseStopped, Reason: "the node stopped while it ran"}
	case why == stopLease:
		return LeaseEnd{Cause: proto.CauseStopped, Reason: "its lease was lost while it ran"}
	case why == stopTimeout:
		return back(proto.CauseTimeout, "the attempt ran out of time")
	case res.Outcome == handler.Fail:
		return outcomeOf(res, proto.Failed, proto.TaskRejected, res.Reason)
	case res.Outcome == handler.NoSpace: // an abandon, like a crash
		return back(proto.CauseCrashed, "there was no room for its output")
	case res.Outcome == handler.Unready:
		e := back(proto.Unstarted, "nothing could be started")
		e.RetryAfter = refusedFor / 4
		return e
	}
	return back(proto.CauseFailed, "the handler failed")
}

func outcomeOf(res *handler.Result, state proto.TaskState, cause proto.TaskCause, reason string) LeaseEnd {
	if res.File != "" {
		e := outcomeOf(&handler.Result{Code: res.Code, Stderr: res.Stderr, ContentType: res.ContentType, Truncated: res.Truncated}, state, cause, reason)
		e.Outcome.BodySize, e.Outcome.BodyDigest, e.File = uint64(res.Size), res.Digest, res.File
		return e
	}
	sum := sha256.Sum256(res.Output)
	return LeaseEnd{Outcome: &proto.Outcome{
		State: state, ExitCode: int32(res.Code), Cause: cause, Reason: text(reason, proto.MaxReason), Stderr: tail(res.Stderr, proto.MaxStderr),
		Body: res.Output, BodySize: uint64(len(res.Output)), BodyDigest: sum[:], ContentType: text(res.ContentType, 128), Truncated: res.Truncated,
	}}
}
