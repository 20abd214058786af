package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// An answeredEntry is a sent entry with the peer's answer.
type answeredEntry struct {
	sentEntry
	refusal  *proto.Refusal // nil: the peer has it durably
	receipt  *proto.Receipt // for an accepted task
	decision decision
}

// processAcks writes down the acknowledged and refused entries. Acknowledgements
// that arrive during a write are written together.
func (ps *peerSender) processAcks(ctx context.Context) error {
	for {
		select {
		case ack := <-ps.acks:
			all, err := ps.matchAck(nil, ack)
			for more := true; more && err == nil; {
				select {
				case ack := <-ps.acks:
					all, err = ps.matchAck(all, ack)
				default:
					more = false
				}
			}
			if ferr := ps.apply(ctx, all); ferr != nil {
				return ferr
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// matchAck removes the entries that ack answers from those in flight and appends
// them to dst.
func (ps *peerSender) matchAck(dst []answeredEntry, ack *proto.Ack) ([]answeredEntry, error) {
	entries, err := ps.takeAcked(ack)
	if err != nil || len(entries) == 0 {
		return dst, err
	}
	from := len(dst)
	dst = slices.Grow(dst, len(entries))
	for _, f := range entries {
		dst = append(dst, answeredEntry{sentEntry: f})
	}
	batch := dst[from:]
	first, last := ack.UpTo-uint64(len(entries))+1, uint64(0)
	for _, r := range ack.Refusals {
		if r.Number < first || r.Number > ack.UpTo || r.Number <= last || r.Code == proto.CodeOK {
			return ps.requeue(dst[:from], entries), fmt.Errorf("%w: refusal of frame %d in an answer to %d-%d", ErrBadAck, r.Number, first, ack.UpTo)
		}
		last = r.Number
		batch[r.Number-first].refusal = r
	}
	if err := ps.receipts(batch, ack); err != nil {
		return ps.requeue(dst[:from], entries), err
	}
	return dst, nil
}

// takeAcked returns the entries that ack answers: all up to ack.UpTo.
func (ps *peerSender) takeAcked(ack *proto.Ack) ([]sentEntry, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ack.UpTo < ps.first {
		return nil, nil // already answered
	}
	n := ack.UpTo - ps.first + 1
	if n > uint64(len(ps.inflight)) || ack.From != 0 && ack.From != ps.first {
		return nil, fmt.Errorf("%w: frames %d-%d, of %d-%d that were sent", ErrBadAck, ack.From, ack.UpTo, ps.first, ps.first+uint64(len(ps.inflight))-1)
	}
	entries := ps.inflight[:n:n]
	ps.inflight = ps.inflight[n:]
	ps.first = ack.UpTo + 1
	return entries, nil
}

// requeue puts entries back in flight after an invalid acknowledgement.
func (ps *peerSender) requeue(dst []answeredEntry, entries []sentEntry) []answeredEntry {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.first -= uint64(len(entries))
	ps.inflight = append(entries[:len(entries):len(entries)], ps.inflight...)
	return dst
}

// AcceptedStatement returns what a target states about a task that it has
// accepted. An Ack signs the statements of its accepted DATA frames, in the order
// of the frames.
func AcceptedStatement(mesh proto.MeshID, id proto.TaskID, target proto.PeerID, seq proto.Seq, timeMs int64) proto.Statement {
	return proto.Statement{
		Fact: proto.FactAccepted, State: proto.Accepted,
		Mesh: mesh, Task: id, Node: target, Time: timeMs, Epoch: seq,
	}
}

// receipts derives the receipt of each accepted task from the signature of the
// Ack: this node knows what the target must have stated.
func (ps *peerSender) receipts(batch []answeredEntry, ack *proto.Ack) error {
	statements, index := make([][]byte, 0, len(batch)), make([]int, 0, len(batch))
	buf := make([]byte, 0, len(batch)*proto.StatementSize)
	for i := range batch {
		a := &batch[i]
		if a.refusal != nil || a.item.Key.Part != backlog.PartTask {
			continue
		}
		s := AcceptedStatement(ps.o.cfg.Mesh, a.item.Key.ID, ps.peer, a.rec.Seq(), ack.Time)
		from := len(buf)
		buf = s.Append(buf)
		statements, index = append(statements, buf[from:len(buf):len(buf)]), append(index, i)
	}
	if len(statements) == 0 {
		return nil
	}
	list, err := ps.o.cfg.Verifier.AckReceipts(ps.peer, statements, ack.Signature)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadAck, err)
	}
	for i, r := range list {
		batch[index[i]].receipt = r
	}
	return nil
}

// apply carries out the answers, with one batch for everything that is written.
func (ps *peerSender) apply(ctx context.Context, all []answeredEntry) error {
	edits, index := make([]backlog.Edit, 0, len(all)), make([]int, 0, len(all))
	for i := range all {
		a := &all[i]
		ps.decide(a)
		if a.decision.action == retry || a.decision.action == sendBodyFirst {
			ps.postpone(ctx, a)
			continue
		}
		edits = append(edits, a.edit())
		index = append(index, i)
	}
	now := ps.o.cfg.Clock.Now()
	records := make([]*proto.Record, len(edits))
	errs := ps.o.backlog.Change(ctx, edits, func(i int, r *proto.Record) backlog.Action {
		records[i] = r
		return ps.applyDecision(&all[index[i]], r, now)
	})
	moved := 0
	for i, err := range errs {
		a := &all[index[i]]
		if err != nil {
			if ps.o.store.Err() != nil {
				return fmt.Errorf("record the answers: %w", err)
			}
			ps.notRecorded(a, err)
			continue
		}
		moved += ps.afterWrite(a, records[i])
	}
	ps.mu.Lock()
	ps.settled += moved
	ps.mu.Unlock()
	signal(ps.wake)
	return nil
}

// notRecorded handles an answer that could not be written. If the entry is still
// live it is sent again.
func (ps *peerSender) notRecorded(a *answeredEntry, err error) {
	if errors.Is(err, backlog.ErrNotFound) {
		ps.o.deliveries.drop(a.item.Key) // it ended in the meantime
		return
	}
	ps.unanswered(a.item, proto.Clip("the answer could not be recorded: "+err.Error(), 256))
}

// decide makes the decision about one answer.
func (ps *peerSender) decide(a *answeredEntry) {
	k := a.item.Key
	switch {
	case a.refusal != nil:
		a.decision = onRefusal(k.Part, refusal{
			code: a.refusal.Code, attempts: int(a.rec.Attempts), limit: ps.o.cfg.MaxAttempts,
			cancel: a.rec.Cancel || ps.o.wantsCancel(k), certainlyNotDelivered: ps.o.certainlyNotDelivered(k, a.rec),
			expired: a.refusal.Code == proto.CodeExpired && ps.o.pastNotAfter(k),
			unknown: a.refusal.State == proto.StateUnspecified,
		})
	case k.Part == backlog.PartTask:
		a.decision = decision{action: accept}
	default:
		a.decision = decision{action: drop}
	}
}

// pastNotAfter reports whether a task has expired by this node's clock, provided
// that the clock is not doubted and the times of the task agree with it.
func (o *Outbox) pastNotAfter(k backlog.Key) bool {
	now, ok := o.trustedNow()
	if !ok {
		return false
	}
	r, _, err := o.backlog.Get(k)
	return err == nil && now >= r.NotAfterMs-proto.Skew.Milliseconds()
}

// certainlyNotDelivered reports whether nothing sent over an earlier link can
// still arrive.
func (o *Outbox) certainlyNotDelivered(k backlog.Key, r *proto.Record) bool {
	n, now := o.deliveries.get(k), o.cfg.Clock.Boot()
	if p, err := proto.PeerIDFrom(r.Peer); err == nil && now-o.started < inTransitMax && !n.notReceived && o.links.maybeSentBefore(p, r.Seq()) {
		return false
	}
	return !n.linkBroke || now-n.brokeAt >= inTransitMax
}

// wantsCancel reports whether cancellation of the task was requested.
func (o *Outbox) wantsCancel(k backlog.Key) bool {
	_, ok := o.backlog.Peek(backlog.Key{ID: k.ID, Part: backlog.PartCancel})
	return ok
}

// postpone schedules the retry of a refused entry, in memory only. A task that
// was signed with wrong times, and may have been refused for them, is signed
// again.
func (ps *peerSender) postpone(ctx context.Context, a *answeredEntry) {
	o, k := ps.o, a.item.Key
	timed := slices.Contains([]proto.Code{proto.CodeExpired, proto.CodeBusy, proto.CodeClock}, a.refusal.Code)
	if timed && o.timesMoved(a) && o.certainlyNotDelivered(k, a.rec) && o.resignWithNewTimes(ctx, k) {
		ps.mu.Lock()
		delete(ps.arrivedBodies, k)
		ps.mu.Unlock()
		return
	}
	before := o.deliveries.get(k)
	n := o.refused(k, a.rec, a.refusal)
	if a.decision.action == sendBodyFirst {
		ps.queueBody(a.item)
		return
	}
	o.resultRefused(k, ps.peer, a.refusal, before, n, false)
	if o.hints.recent(ps.peer, a.refusal.Code, o.cfg.Clock.Boot()) {
		o.backlog.Release(k, jitter())
		return
	}
	wait := max(backoff(n.tries, rand.Float64()), min(time.Duration(a.refusal.RetryAfterMs)*time.Millisecond, maxBackoff))
	o.backlog.Release(k, wait)
}

// refused records a refusal.
func (o *Outbox) refused(k backlog.Key, rec *proto.Record, r *proto.Refusal) deliveryState {
	sure := o.certainlyNotDelivered(k, rec)
	return o.note(k, func(n *deliveryState) {
		n.tries++
		n.code, n.detail, n.at = r.Code, proto.Clip(r.Detail, 256), o.cfg.Clock.Now()
		n.rewrap = n.rewrap || r.Code == proto.CodeBadKey
		if sure {
			n.linkBroke, n.notReceived = false, true
		}
	})
}

// applyDecision applies an answer to the record as it is now.
func (ps *peerSender) applyDecision(a *answeredEntry, r *proto.Record, now time.Time) backlog.Action {
	switch a.decision.action {
	case accept:
		return ps.accepted(a, r, now)
	case drop:
		if a.item.Key.Part == backlog.PartCancel && r.CancelHard && !a.rec.CancelHard {
			return backlog.Keep // a hard cancellation was requested meanwhile
		}
		return backlog.Drop
	case spendAttempt:
		r.Attempts++
		setRefused(r, a.refusal)
		r.DueMs = now.Add(backoff(int(r.Attempts), rand.Float64())).UnixMilli()
		r.AddEvent(&proto.Event{TimeMs: now.UnixMilli(), Node: ps.peer[:], State: r.State, Attempt: r.Attempts, Cause: r.Cause, Code: r.Code, Detail: r.Reason})
		return backlog.Requeue
	}
	if r.State.Terminal() {
		return backlog.Keep
	}
	setRefused(r, a.refusal)
	r.Move(a.decision.state, now, r.Cause, r.Reason)
	r.Events[len(r.Events)-1].Code = r.Code
	if a.decision.state == proto.DeadLetter && r.Status == "" {
		r.Status = StatusNew
	}
	return endAction(r)
}

// setRefused records why the peer refused an entry.
func setRefused(r *proto.Record, why *proto.Refusal) {
	r.Cause, r.Code, r.Reason = proto.TaskRefused, why.GetCode(), proto.Clip(why.GetDetail(), proto.MaxReason)
}

// accepted records that the target has the task. It may be running already. The
// receipt replaces that of an earlier acceptance by the same target, which may
// forget the task any number of times.
func (ps *peerSender) accepted(a *answeredEntry, r *proto.Record, now time.Time) backlog.Action {
	if a.receipt != nil {
		r.Receipts = append(slices.DeleteFunc(r.Receipts, ps.statesAcceptance), a.receipt)
	}
	if r.State != proto.Pending {
		if a.receipt == nil {
			return backlog.Keep
		}
		return backlog.Write
	}
	cause := proto.TaskCause(0)
	if a.refusal != nil {
		cause = proto.TaskAcceptedBefore
	}
	r.DueMs = 0
	r.Move(proto.Accepted, now, cause, "")
	r.Events[len(r.Events)-1].Node = ps.peer[:]
	return backlog.Write
}

// statesAcceptance reports whether rc states that the peer accepted a task.
func (ps *peerSender) statesAcceptance(rc *proto.Receipt) bool {
	s, err := proto.ParseStatement(rc.GetStatement())
	return err == nil && s.Fact == proto.FactAccepted && s.Node == ps.peer
}

// afterWrite finishes an answer that is on disk. It returns 1 if the task will
// not be sent again.
func (ps *peerSender) afterWrite(a *answeredEntry, r *proto.Record) int {
	o, k := ps.o, a.item.Key
	if a.decision.action == spendAttempt {
		o.refused(k, r, a.refusal)
		o.changed(k, r)
		return 0
	}
	o.deliveries.drop(k)
	if r.BodyBlob != "" {
		ps.mu.Lock()
		delete(ps.arrivedBodies, k)
		ps.mu.Unlock()
	}
	if k.Part != backlog.PartTask {
		if a.decision.action == end {
			o.resultRefused(k, ps.peer, a.refusal, deliveryState{}, deliveryState{}, true)
		}
		if a.decision.action == drop {
			o.resultStale(k, ps.peer, a.refusal)
		}
		if k.Part == backlog.PartResult && a.decision.action == drop && r.BodyBlob != "" {
			o.cfg.Unneeded(r.BodyBlob)
		}
		return 0
	}
	o.seqs.settle(ps.peer, r.Seq())
	o.changed(k, r)
	if a.receipt != nil && r.State == proto.Accepted { // then it was written: see accepted
		o.accepted.put(backlog.Edit{Key: k, Record: r, Version: a.item.Version + 1})
	}
	return 1
}
