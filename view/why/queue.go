package why

import (
	"context"
	"slices"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// queue explains why a shared queue does not get its tasks done.
func (w *walk) queue(ctx context.Context, name string) error {
	q, err := w.queues.Get(ctx, name)
	if err != nil {
		return err
	}
	w.Subject, w.State = proto.QueueTarget(name), "OPEN"
	w.step(wire.StepQueueHome, wire.NoteArgs{Queue: name, Peer: q.Home, Generation: q.Generation})
	if q.Here {
		w.step(wire.StepQueueTasks, wire.NoteArgs{Count: q.Waiting, Held: q.Owned})
	}
	able := 0
	for _, m := range q.Members {
		if m.Alive && !m.Draining {
			able++
		}
	}
	about := wire.NoteArgs{Queue: name}
	switch {
	case q.Alarm != nil:
		w.State, w.Cause = "HOMELESS", *q.Alarm
	case q.Paused:
		w.State = "PAUSED"
		w.cause(wire.NoteQueuePaused, wire.NoteArgs{Queue: name, Peer: q.Home})
	case !q.Here && w.homeUnreachable(name):
	case !q.Here:
		w.cause(wire.NoteAskHome, wire.NoteArgs{Queue: name, Peer: q.Home})
	case w.Gossip.SelfPaused():
		w.Cause = w.PausedNote()
	case q.Waiting == 0:
		w.cause(wire.NoteNothingWaits, wire.NoteArgs{})
	case able == 0:
		w.cause(wire.NoteNoWorker, about)
	default:
		w.cause(wire.NoteQueueBusy, about)
	}
	return nil
}

// homeUnreachable explains why this node does not reach the home of a queue, and reports
// whether that is so.
func (w *walk) homeUnreachable(name string) bool {
	home, err := proto.PeerIDFrom(w.Leases.QueueStates()[name].GetHome())
	p, known := w.Book.Get(home)
	if err != nil || !known || w.Net.Connected(home) {
		return false
	}
	next := w.Next
	w.unreachable(w.reach(p))
	w.Next = next
	return true
}

// queued explains the state of a task of a queue whose home is this node.
func (w *walk) queued(ctx context.Context, id proto.TaskID, rec *proto.Record) {
	v, known, err := w.Leases.Task(ctx, id)
	if err != nil || !known {
		w.left(ctx, id)
		return
	}
	w.grants(v, rec)
}

// grants explains which node runs a task of a queue whose home is this node, or why none does.
func (w *walk) grants(v ownership.TaskView, rec *proto.Record) {
	owner, queue := w.Book.NameOf(v.Peer), rec.GetQueue()
	w.step(wire.StepQueueTask, wire.NoteArgs{Queue: queue, State: v.State, Attempts: int(v.Attempts), Abandons: int(v.Abandons)})
	if len(v.Grants) > 0 {
		w.step(wire.StepGranted, wire.NoteArgs{Epoch: v.Epoch.String(), Peer: owner})
	}
	switch {
	case v.Leased:
		w.cause(wire.NoteLeased, wire.NoteArgs{Peer: owner, Task: w.Subject})
		w.Next = new(w.Clock.Now().Add(v.Left).UTC())
	case v.State == proto.Running.Name() || v.State == proto.Indeterminate.Name():
		w.cause(wire.NoteMayRun, wire.NoteArgs{Peer: owner})
	case v.Paused:
		w.cause(wire.NoteQueuePaused, wire.NoteArgs{Queue: queue})
	case !v.Active:
		w.Cause = w.PausedNote()
	case v.Blocked:
		w.cause(wire.NoteLaneBlocked, wire.NoteArgs{Queue: queue, Key: rec.GetOrderingKey()})
	case !v.AtHead:
		w.cause(wire.NoteLaneWaits, wire.NoteArgs{})
	case v.Due > 0:
		w.cause(wire.NoteRetryWaits, wire.NoteArgs{Detail: v.Reason})
		w.Next = new(w.Clock.Now().Add(v.Due).UTC())
	case v.Serving == 0:
		w.cause(wire.NoteKindUnserved, wire.NoteArgs{Kind: rec.GetKind(), Names: rec.GetOptions().GetRequire()})
	case v.Available == 0 && v.BackedOff > 0:
		w.cause(wire.NoteMembersRefused, wire.NoteArgs{Count: v.BackedOff, Of: v.Serving, Detail: lastRefusal(v.Grants, v.Reason)})
	case v.Available == 0:
		w.cause(wire.NoteMembersBusy, wire.NoteArgs{Queue: queue, Of: v.Serving})
	default:
		w.cause(wire.NoteGrantedNext, wire.NoteArgs{})
	}
}

// lastRefusal tells how the newest grant of a task ended; reason is why, if its owner took
// it and could not start it.
func lastRefusal(grants []*proto.Granting, reason string) string {
	n := len(grants)
	if n == 0 {
		return ""
	}
	if ended := grants[n-1].GetEnded(); ended != proto.Unstarted.Name() || reason == "" {
		return ended
	}
	return reason
}

// left explains the state of a task stored here whose home is no longer this node.
func (w *walk) left(ctx context.Context, id proto.TaskID) {
	past, known, err := w.Leases.FormerTask(ctx, id)
	w.former(past, err == nil && known)
}

// former explains what became of a task that was here, as far as that is known.
func (w *walk) former(past ownership.FormerTask, known bool) {
	home := w.Book.NameOf(past.Peer)
	to := wire.NoteArgs{Peer: home}
	switch {
	case !known || past.State.Terminal():
		w.cause(wire.NoteEnding, wire.NoteArgs{})
	case past.Code != 0:
		w.step(wire.StepHandoff, to)
		to.Refusal, to.Detail = past.Code.Name(), past.Refused
		w.cause(wire.NoteMoveRefused, to)
	case past.Going && !w.Net.Connected(past.Peer):
		w.cause(wire.NoteMoveWaits, to)
	case past.Going:
		w.cause(wire.NoteMoving, to)
	default:
		w.cause(wire.NoteMoved, wire.NoteArgs{Peer: home, Task: w.Subject})
	}
}

// homeless replaces the cause if the home that has the task of a queue, or should have
// it, is lost.
func (w *walk) homeless(ctx context.Context, o outbox.Why, rec *proto.Record) {
	name, queued := proto.QueueOf(rec.GetTarget())
	s := w.Leases.QueueStates()[name]
	if !queued || s == nil || o.State.Terminal() {
		return
	}
	if string(s.GetHome()) == string(o.Peer[:]) {
		if a := w.alarm(ctx, name); a != nil {
			w.step(wire.StepQueueHome, wire.NoteArgs{Queue: name, Peer: a.Peer, State: a.State})
			w.Cause = *a
		} else if owner := w.runsOn(rec); owner != "" {
			w.step(wire.StepStarted, wire.NoteArgs{Peer: owner})
			w.cause(wire.NoteStartedThere, wire.NoteArgs{Peer: owner, Task: w.Subject})
		}
		return
	}
	if _, _, gone := w.queues.HomeGone(o.Peer); !gone {
		return
	}
	home, _ := w.Book.Identify(s.GetHome())
	a := wire.NoteArgs{Queue: name, Peer: w.Book.NameOf(o.Peer), Other: home, Task: w.Subject}
	w.step(wire.StepQueueHome, wire.NoteArgs{Queue: name, Peer: home, Generation: s.GetGeneration()})
	if w.cause(wire.NoteOldHomeLost, a); string(s.GetHome()) == string(w.Self.Peer[:]) {
		w.cause(wire.NoteOldHomeKeepsIt, a)
	}
}

// alarm returns the alarm of a queue, or nil.
func (w *walk) alarm(ctx context.Context, name string) *wire.Note {
	q, err := w.queues.Get(ctx, name)
	if err != nil {
		return nil
	}
	return q.Alarm
}

// runsOn returns the name of the owner that runs a task, as far as its origin knows.
func (w *walk) runsOn(rec *proto.Record) string {
	if rec.GetState() != proto.Running {
		return ""
	}
	for _, e := range slices.Backward(rec.GetEvents()) {
		if e.GetState() == proto.Running {
			name, _ := w.Book.Identify(e.GetNode())
			return name
		}
	}
	return ""
}

// leased explains the state of a task for which this node has only a lease, and reports
// whether there is one.
func (w *walk) leased(ctx context.Context, ref string) bool {
	v, ok := w.queues.LeaseOf(ctx, ref)
	if !ok {
		return false
	}
	home := w.Book.NameOf(v.Peer)
	w.Subject, w.State = v.Task.String(), v.State
	w.step(wire.StepQueueHome, wire.NoteArgs{Queue: v.Queue, Peer: home})
	w.step(wire.StepLeaseHere, wire.NoteArgs{Epoch: v.Epoch.String(), Attempts: int(v.Attempts)})
	at := wire.NoteArgs{Peer: home}
	alarm := w.alarm(ctx, v.Queue)
	_, _, gone := w.queues.HomeGone(v.Peer)
	switch {
	case v.State == proto.LeaseStarted.Name() && v.Lapsed:
		w.cause(wire.NoteRunsUnleased, at)
	case v.State == proto.LeaseStarted.Name():
		w.cause(wire.NoteRuns, wire.NoteArgs{})
	case v.State == proto.LeaseReceived.Name() && v.Fetching:
		w.cause(wire.NoteFetchingBody, at)
	case v.State == proto.LeaseReceived.Name():
		st := w.Inbox.Status()
		w.cause(wire.NoteWaitsForSlot, wire.NoteArgs{Count: st.Used, Of: st.Slots})
	case v.Unknown && !w.Book.Revoked(v.Peer):
		w.cause(wire.NoteHomeForgot, at)
	case alarm != nil:
		w.Cause = *alarm
		w.Cause.Result = true
	case gone:
		w.cause(wire.NoteResultHomeLost, at)
	default:
		w.cause(wire.NoteResultSent, at)
	}
	return true
}
