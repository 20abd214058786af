package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// maxOrphans is how many late results a record keeps.
const maxOrphans = 4

// A ResultIn is a received result for a task of this home, checked and opened.
type ResultIn struct {
	ID      proto.TaskID
	Seq     proto.Seq // of the result's header: the epoch that it answers
	Outcome *proto.Outcome
	// Blob names the durable file with the result if that is larger than
	// proto.MaxInlineRecord: plain, or the object that Outcome.Object refers to.
	// Outcome.Body is not kept then.
	Blob string
	// TooLarge is set by Commit: the task became a dead letter because the result
	// exceeds its limit.
	TooLarge bool
}

// A ResultAnswer answers a result.
type ResultAnswer struct {
	Code   proto.Code // CodeUnspecified: committed, now or before
	Detail string
	State  proto.TaskState // of the task
}

// Commit ends tasks with the results that from has sent, in one batch: each by
// the commit rule, at most once. A task that had ended by time alone ends as its
// result states. A result that does not count is answered STALE and recorded as
// an orphan. Commit returns once everything is durable.
func (o *Outbox) Commit(ctx context.Context, from proto.PeerID, results []ResultIn) []ResultAnswer {
	answers := make([]ResultAnswer, len(results))
	edits := make([]backlog.Edit, len(results))
	for i := range results {
		edits[i] = o.accepted.take(backlog.TaskKey(results[i].ID))
	}
	now := o.cfg.Clock.Now()
	records, decisions := make([]*proto.Record, len(results)), make([]decision, len(results))
	errs := o.backlog.Change(ctx, edits, func(i int, r *proto.Record) backlog.Action {
		in := &results[i]
		records[i] = r
		decisions[i] = onResult(r, o.assertionOf(r, from, in))
		if decisions[i].action == accept && in.Outcome.TooLarge(r.Options) {
			in.Blob, in.TooLarge = "", true
		}
		if decisions[i].action == accept && len(in.Outcome.Body) > proto.MaxInlineRecord && in.Blob == "" {
			decisions[i].action = sendBodyFirst
		}
		switch decisions[i].action {
		case accept:
			applyResult(r, from, in, now)
			return endAction(r)
		case drop:
			if addOrphan(r, from, in, now) {
				return backlog.Write
			}
		}
		return backlog.Keep
	})
	for i, err := range errs {
		switch {
		case err == nil:
			answers[i] = o.committed(ctx, edits[i].Key, records[i], decisions[i])
		case errors.Is(err, backlog.ErrNotFound):
			answers[i] = o.late(ctx, from, &results[i], now)
		default:
			answers[i] = ResultAnswer{Code: proto.CodeInternal, Detail: "the result could not be written: " + err.Error()}
		}
	}
	return answers
}

func (o *Outbox) assertionOf(r *proto.Record, from proto.PeerID, in *ResultIn) assertion {
	return assertion{wasHome: o.wasHome(r, from), from: from, seq: in.Seq, state: in.Outcome.GetState(), digest: in.Outcome.GetBodyDigest()}
}

// committed answers a result whose task was live, and does what follows.
func (o *Outbox) committed(ctx context.Context, k backlog.Key, r *proto.Record, decision decision) ResultAnswer {
	switch decision.action {
	case accept:
		o.ended(ctx, k, r)
		return ResultAnswer{State: r.State}
	case sendBodyFirst:
		return ResultAnswer{Code: proto.CodeNeedBody, Detail: "the result is larger than a record and has no blob", State: r.State}
	case noChange:
		return ResultAnswer{State: r.State}
	case retry:
		return ResultAnswer{Code: proto.CodeBusy, Detail: "this node does not know the sender as a home of the task's queue yet", State: r.State}
	}
	return ResultAnswer{Code: proto.CodeStale, Detail: "not the owner, or not the epoch, of this task", State: r.State}
}

// late answers a result whose task has ended or is unknown.
func (o *Outbox) late(ctx context.Context, from proto.PeerID, in *ResultIn, now time.Time) ResultAnswer {
	k := backlog.TaskKey(in.ID)
	r, _, err := o.backlog.Get(k)
	if errors.Is(err, backlog.ErrNotFound) {
		return ResultAnswer{Code: proto.CodeStale, Detail: "no such task here"}
	}
	if err != nil {
		return ResultAnswer{Code: proto.CodeInternal, Detail: fmt.Sprintf("read the task: %v", err)}
	}
	switch onResult(r, o.assertionOf(r, from, in)).action {
	case noChange:
		return ResultAnswer{State: r.State}
	case accept:
		if in.Outcome.TooLarge(r.Options) {
			in.Blob, in.TooLarge = "", true
		}
		return o.commitLate(ctx, k, from, in, now)
	}
	stale := ResultAnswer{Code: proto.CodeStale, Detail: "the task has ended as " + r.State.Name(), State: r.State}
	if !addOrphan(r, from, in, now) {
		return stale
	}
	err = o.backlog.Revise(ctx, k, func(r *proto.Record) { addOrphan(r, from, in, now) })
	if err != nil && !errors.Is(err, backlog.ErrNotFound) {
		return ResultAnswer{Code: proto.CodeInternal, Detail: fmt.Sprintf("record the late result: %v", err)}
	}
	return stale
}

// commitLate ends a task that had ended by time alone with its result. One that still
// moves to another queue is kept whole, like any other that moves.
func (o *Outbox) commitLate(ctx context.Context, k backlog.Key, from proto.PeerID, in *ResultIn, now time.Time) ResultAnswer {
	if len(in.Outcome.Body) > proto.MaxInlineRecord && in.Blob == "" {
		return ResultAnswer{Code: proto.CodeNeedBody, Detail: "the result is larger than a record and has no blob"}
	}
	queue := ""
	if in.Outcome.State == proto.Cancelled {
		var err error
		if queue, err = o.MovesTo(in.ID); err != nil {
			return ResultAnswer{Code: proto.CodeInternal, Detail: fmt.Sprintf("commit the late result: %v", err)}
		}
	}
	counts := func(r *proto.Record) bool { return onResult(r, o.assertionOf(r, from, in)).action == accept }
	var done *proto.Record
	err := o.backlog.ReviseTo(ctx, k, func(r *proto.Record) backlog.Set {
		if counts(r) && queue == "" && endActionFor(in.Outcome.State) == backlog.ToDone {
			return backlog.Done
		}
		return backlog.Dead
	}, func(r *proto.Record) {
		if !counts(r) {
			return
		}
		ended := r.EndedMs
		r.Status, r.MovesTo = "", queue
		applyResult(r, from, in, now)
		if endAction(r) == backlog.ToDead {
			r.EndedMs = ended // its position among the dead letters
		}
		done = r
	}, func(b *store.Batch) {
		if queue != "" && done != nil {
			b.Put(store.Dedup, moveKey(in.ID[:]), []byte(queue)) // it may just have been forgotten
		}
		if done != nil {
			o.endedTask(k, done, b)
		}
	})
	switch {
	case err != nil:
		return ResultAnswer{Code: proto.CodeInternal, Detail: fmt.Sprintf("commit the late result: %v", err)}
	case done == nil:
		return ResultAnswer{Code: proto.CodeBusy, Detail: "the task has just changed"}
	}
	o.cfg.Logger.Warn("a task that had expired by the clock of this node ends with its result", "task", k.ID.String(), "state", done.State.Name())
	o.ended(ctx, k, done)
	return ResultAnswer{State: done.State}
}

// applyResult ends r with a result that counts.
func applyResult(r *proto.Record, from proto.PeerID, in *ResultIn, now time.Time) {
	out := in.Outcome
	for _, e := range out.Events {
		e.Node = from[:]
		r.AddEvent(e)
	}
	r.BootId, r.ExitCode, r.Truncated = out.BootId, out.ExitCode, out.Truncated
	r.Cause, r.Reason, r.Stderr = out.Cause, proto.Clip(out.Reason, proto.MaxReason), proto.Clip(out.Stderr, proto.MaxStderr)
	r.MayHaveRun = out.MayHaveRun
	r.ResultDigest, r.ResultSize, r.ResultType = out.BodyDigest, out.BodySize, out.ContentType
	if r.ResultBlob, r.ResultObject = in.Blob, out.Object; in.Blob == "" {
		r.Result = out.Body
	}
	r.History = out.Attempts
	if n := len(out.Attempts); n > 0 {
		r.Attempts = out.Attempts[n-1].Number
	}
	r.Receipts = mergeReceipts(r.Receipts, receiptsFrom(out.Receipts, from, in.ID))
	if state, ends := out.Code.Ends(); ends && state == out.State {
		r.Code = out.Code
	}
	r.DueMs, r.Cancel = 0, false
	r.Move(out.State, now, proto.TaskCommitted, "")
	if endActionFor(out.State) == backlog.ToDead {
		r.Status = StatusNew
	}
}

// receiptsFrom returns the receipts in which node states something about task id,
// at most 4.
func receiptsFrom(list []*proto.Receipt, node proto.PeerID, id proto.TaskID) []*proto.Receipt {
	var out []*proto.Receipt
	for _, rc := range list {
		if s, err := proto.ParseStatement(rc.GetStatement()); err == nil && s.Node == node && s.Task == id && len(out) < 4 {
			out = append(out, rc)
		}
	}
	return out
}

// mergeReceipts adds the receipts that came with a result to the earlier ones. A
// result may overtake the Ack of its task; it then also brings the receipt of the
// acceptance.
func mergeReceipts(have, came []*proto.Receipt) []*proto.Receipt {
	type fact struct {
		fact    proto.Fact
		attempt uint32
	}
	states := func(rc *proto.Receipt) fact {
		s, _ := proto.ParseStatement(rc.GetStatement()) // both lists were parsed before
		return fact{s.Fact, s.Attempt}
	}
	for _, rc := range came {
		known := func(old *proto.Receipt) bool { return states(old) == states(rc) }
		if !slices.ContainsFunc(have, known) {
			have = append(have, rc)
		}
	}
	return have
}

// addOrphan records a result that does not count, once per sender and digest, and
// reports whether that changed r.
func addOrphan(r *proto.Record, from proto.PeerID, in *ResultIn, now time.Time) bool {
	s := proto.Statement{
		Fact: proto.FactOrphan, State: in.Outcome.GetState(), Task: in.ID, Node: from,
		Time: now.UnixMilli(), Epoch: in.Seq,
	}
	if d := in.Outcome.GetBodyDigest(); len(d) == len(s.Digest) {
		s.Algorithm, s.Digest = 1, [32]byte(d)
	}
	for _, o := range r.Orphans {
		if old, err := proto.ParseStatement(o.GetStatement()); err == nil && old.Node == from && old.Digest == s.Digest && old.Epoch == s.Epoch {
			return false
		}
	}
	if len(r.Orphans) >= maxOrphans {
		return false
	}
	r.Orphans = append(r.Orphans, &proto.Receipt{Statement: s.Append(nil)})
	r.AddEvent(&proto.Event{TimeMs: now.UnixMilli(), Node: from[:], State: r.State, Cause: proto.TaskOrphan})
	return true
}

// Started records what an owner states while a task runs. It is optional
// information: statements that do not fit are ignored.
func (o *Outbox) Started(ctx context.Context, from proto.PeerID, receipts []*proto.Receipt) {
	var edits []backlog.Edit
	var states []proto.Statement
	var kept []*proto.Receipt
	for _, rc := range receipts {
		s, err := proto.ParseStatement(rc.GetStatement())
		if err != nil || s.Fact != proto.FactStarted {
			continue
		}
		edits = append(edits, backlog.Edit{Key: backlog.TaskKey(s.Task)})
		states, kept = append(states, s), append(kept, rc)
	}
	now := o.cfg.Clock.Now()
	records := make([]*proto.Record, len(edits))
	errs := o.backlog.Change(ctx, edits, func(i int, r *proto.Record) backlog.Action {
		s := states[i]
		if r.State == proto.Pending || r.State.Terminal() || !o.acceptsStart(r, from, &s) {
			return backlog.Keep
		}
		records[i] = r
		r.Attempts = max(r.Attempts, s.Attempt)
		r.Move(proto.Running, now, 0, "")
		r.Events[len(r.Events)-1].Node = s.Node[:]
		if len(r.Receipts) < proto.MaxAttempts {
			r.Receipts = append(r.Receipts, kept[i])
		}
		return backlog.Write
	})
	for i, err := range errs {
		if err == nil && records[i] != nil {
			o.changed(edits[i].Key, records[i])
		}
	}
}

// acceptsStart reports whether a start that from reports is new for r. It is
// accepted from the node that r was sent to. From the current or an earlier home
// of the queue that r was sent to it is accepted for any node, under a later
// lease than the previous start.
func (o *Outbox) acceptsStart(r *proto.Record, from proto.PeerID, s *proto.Statement) bool {
	addressee := string(r.Peer) == string(from[:])
	if s.Node == from && addressee && r.Seq() == s.Epoch {
		return r.State != proto.Running || r.Attempts < s.Attempt
	}
	if _, queued := proto.QueueOf(r.Target); !queued || !addressee && !o.wasHome(r, from) {
		return false
	}
	return !slices.ContainsFunc(r.Receipts, func(rc *proto.Receipt) bool {
		old, err := proto.ParseStatement(rc.GetStatement())
		return err == nil && old.Fact == proto.FactStarted && old.Epoch.Compare(s.Epoch) >= 0
	})
}

func (o *Outbox) wasHome(r *proto.Record, from proto.PeerID) bool {
	return o.cfg.WasHome != nil && o.cfg.WasHome(r.Target, from)
}

// ended does what follows the end of a task: it will not be sent again, and its
// cancellation is dropped.
func (o *Outbox) ended(ctx context.Context, k backlog.Key, r *proto.Record) {
	o.deliveries.drop(k)
	o.submitted.take(k)
	o.accepted.take(k)
	if p, err := proto.PeerIDFrom(r.Peer); err == nil && k.Part == backlog.PartTask {
		o.seqs.settle(p, r.Seq())
	}
	c := backlog.Key{ID: k.ID, Part: backlog.PartCancel}
	if _, ok := o.backlog.Peek(c); ok {
		errs := o.backlog.Change(ctx, []backlog.Edit{{Key: c}}, func(int, *proto.Record) backlog.Action { return backlog.Drop })
		if errs[0] != nil && !errors.Is(errs[0], backlog.ErrNotFound) {
			o.cfg.Logger.Warn("cannot drop the cancellation of an ended task", "task", k, "err", errs[0])
		}
	}
	o.changed(k, r)
}
