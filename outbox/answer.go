package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// An answered is a flight with what the other side said about it.
type answered struct {
	flight
	refusal *proto.Refusal // nil: it is durable there
	receipt *proto.Receipt // of an accepted task
	ruling  ruling
}

// answer writes down what acknowledgements say. Those that came while the last
// were being written are written together.
func (l *lane) answer(ctx context.Context) error {
	for {
		select {
		case ack := <-l.acks:
			all, err := l.match(nil, ack)
			for more := true; more && err == nil; {
				select {
				case ack := <-l.acks:
					all, err = l.match(all, ack)
				default:
					more = false
				}
			}
			if ferr := l.follow(ctx, all); ferr != nil {
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

// match takes the flights that ack answers out of the air and appends them to dst.
func (l *lane) match(dst []answered, ack *proto.Ack) ([]answered, error) {
	flights, err := l.land(ack)
	if err != nil || len(flights) == 0 {
		return dst, err
	}
	from := len(dst)
	for _, f := range flights {
		dst = append(dst, answered{flight: f})
	}
	batch := dst[from:]
	first, last := ack.UpTo-uint64(len(flights))+1, uint64(0)
	for _, r := range ack.Refusals {
		if r.Number < first || r.Number > ack.UpTo || r.Number <= last || r.Code == proto.CodeOK {
			return l.unland(dst[:from], flights), fmt.Errorf("%w: refusal of frame %d in an answer to %d-%d", ErrBadAck, r.Number, first, ack.UpTo)
		}
		last = r.Number
		batch[r.Number-first].refusal = r
	}
	if err := l.receipts(batch, ack); err != nil {
		return l.unland(dst[:from], flights), err
	}
	return dst, nil
}

// land returns the flights that ack answers: all up to ack.UpTo.
func (l *lane) land(ack *proto.Ack) ([]flight, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ack.UpTo < l.first {
		return nil, nil // said before
	}
	n := ack.UpTo - l.first + 1
	if n > uint64(len(l.flying)) || ack.From != 0 && ack.From != l.first {
		return nil, fmt.Errorf("%w: frames %d-%d, of %d-%d that were sent", ErrBadAck, ack.From, ack.UpTo, l.first, l.first+uint64(len(l.flying))-1)
	}
	flights := l.flying[:n:n]
	l.flying = l.flying[n:]
	l.first = ack.UpTo + 1
	return flights, nil
}

// unland puts flights back into the air, for an answer that cannot be believed.
func (l *lane) unland(dst []answered, flights []flight) []answered {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first -= uint64(len(flights))
	l.flying = append(flights[:len(flights):len(flights)], l.flying...)
	return dst
}

// AcceptedStatement is what a target states about a task that it has accepted.
// An Ack signs those of its accepted DATA frames, in the order of the frames.
func AcceptedStatement(mesh proto.MeshID, id proto.TaskID, target proto.PeerID, seq proto.Seq, timeMs int64) proto.Statement {
	return proto.Statement{
		Fact: proto.FactAccepted, State: proto.Accepted,
		Mesh: mesh, Task: id, Node: target, Time: timeMs, Epoch: seq,
	}
}

// receipts derives the receipt of each accepted task from the signature of the
// Ack: what it must have stated is known here.
func (l *lane) receipts(batch []answered, ack *proto.Ack) error {
	var statements [][]byte
	var whose []int
	buf := make([]byte, 0, len(batch)*proto.StatementSize)
	for i := range batch {
		a := &batch[i]
		if a.refusal != nil || a.item.Key.Part != backlog.PartTask {
			continue
		}
		s := AcceptedStatement(l.o.cfg.Mesh, a.item.Key.ID, l.peer, a.rec.Seq(), ack.Time)
		from := len(buf)
		buf = s.Append(buf)
		statements, whose = append(statements, buf[from:len(buf):len(buf)]), append(whose, i)
	}
	if len(statements) == 0 {
		return nil
	}
	list, err := l.o.cfg.Verifier.AckReceipts(l.peer, statements, ack.Signature)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadAck, err)
	}
	for i, r := range list {
		batch[whose[i]].receipt = r
	}
	return nil
}

// follow does what the answers ask for: one batch for all that is written.
func (l *lane) follow(ctx context.Context, all []answered) error {
	edits, whose := make([]backlog.Edit, 0, len(all)), make([]int, 0, len(all))
	for i := range all {
		a := &all[i]
		l.rule(a)
		if a.ruling.effect == wait || a.ruling.effect == carry {
			l.unwritten(ctx, a)
			continue
		}
		edits = append(edits, backlog.Edit{Key: a.item.Key, Held: a.rec, Version: a.item.Version})
		whose = append(whose, i)
	}
	now := l.o.cfg.Clock.Now()
	records := make([]*proto.Record, len(edits))
	errs := l.o.backlog.Change(ctx, edits, func(i int, r *proto.Record) backlog.Action {
		records[i] = r
		return l.change(&all[whose[i]], r, now)
	})
	moved := 0
	for i, err := range errs {
		a := &all[whose[i]]
		if err != nil {
			if l.o.store.Err() != nil {
				return fmt.Errorf("write down what was answered: %w", err)
			}
			l.o.notes.drop(a.item.Key) // it ended meanwhile
			continue
		}
		moved += l.written(a, records[i])
	}
	l.mu.Lock()
	l.moved += moved
	l.mu.Unlock()
	signal(l.kick)
	return nil
}

// rule decides about one answer.
func (l *lane) rule(a *answered) {
	k := a.item.Key
	switch {
	case a.refusal != nil:
		a.ruling = onRefusal(k.Part, refusal{
			code: a.refusal.Code, attempts: int(a.rec.Attempts), limit: l.o.cfg.MaxAttempts,
			cancel: a.rec.Cancel || l.o.wantsCancel(k), sure: l.o.sure(k, a.rec),
			over:    a.refusal.Code == proto.CodeExpired && l.o.over(k),
			unknown: a.refusal.State == proto.StateUnspecified,
		})
	case k.Part == backlog.PartTask:
		a.ruling = ruling{effect: accept}
	default:
		a.ruling = ruling{effect: drop}
	}
}

// over reports whether the time of a task is over by this node's clock, which nobody
// doubts, and by which the times of the task are right.
func (o *Outbox) over(k backlog.Key) bool {
	now, ok := o.timely()
	if !ok {
		return false
	}
	r, _, err := o.backlog.Get(k)
	return err == nil && now >= r.NotAfterMs-proto.Skew.Milliseconds()
}

// sure reports whether nothing that an earlier link carried can still arrive.
func (o *Outbox) sure(k backlog.Key, r *proto.Record) bool {
	n, now := o.notes.get(k), o.cfg.Clock.Boot()
	if p, err := proto.PeerIDFrom(r.Peer); err == nil && now-o.started < sureAfter && !n.denied && o.links.before(p, r.Seq()) {
		return false
	}
	return !n.broke || now-n.since >= sureAfter
}

// wantsCancel reports whether a person wants the task stopped.
func (o *Outbox) wantsCancel(k backlog.Key) bool {
	_, ok := o.backlog.Peek(backlog.Key{ID: k.ID, Part: backlog.PartCancel})
	return ok
}

// unwritten lets a refused entry wait, which memory alone knows. A task that was signed
// with wrong times, and may be refused for them, is signed anew.
func (l *lane) unwritten(ctx context.Context, a *answered) {
	o, k := l.o, a.item.Key
	timed := a.refusal.Code == proto.CodeExpired || a.refusal.Code == proto.CodeBusy
	if timed && o.timesMoved(a) && o.sure(k, a.rec) && o.signAnew(ctx, k) {
		l.mu.Lock()
		delete(l.arrived, k)
		l.mu.Unlock()
		return
	}
	before := o.notes.get(k)
	n := o.refused(k, a.rec, a.refusal)
	if a.ruling.effect == carry {
		l.wantBody(a.item)
		return
	}
	o.resultRefused(k, l.peer, a.refusal, before, n, false)
	if o.hints.fresh(l.peer, a.refusal.Code, o.cfg.Clock.Boot()) {
		o.backlog.Release(k, o.soon())
		return
	}
	wait := max(o.backoff(n.tries), min(time.Duration(a.refusal.RetryAfterMs)*time.Millisecond, o.cfg.MaxBackoff))
	o.backlog.Release(k, wait)
}

// refused notes a refusal.
func (o *Outbox) refused(k backlog.Key, rec *proto.Record, r *proto.Refusal) note {
	sure := o.sure(k, rec)
	return o.notes.update(k, func(n *note) {
		n.tries++
		n.code, n.detail, n.at = r.Code, proto.Clip(r.Detail, 256), o.cfg.Clock.Now()
		n.rewrap = n.rewrap || r.Code == proto.CodeBadKey
		if sure {
			n.broke, n.denied = false, true
		}
	})
}

// change applies an answer to the record as it is now.
func (l *lane) change(a *answered, r *proto.Record, now time.Time) backlog.Action {
	switch a.ruling.effect {
	case accept:
		return l.accepted(a, r, now)
	case drop:
		if a.item.Key.Part == backlog.PartCancel && r.CancelHard && !a.rec.CancelHard {
			return backlog.Keep // it was asked for again, harder
		}
		return backlog.Drop
	case spend:
		r.Attempts++
		r.Reason = proto.Clip(a.refusal.Code.Name()+": "+a.refusal.Detail, proto.MaxReason)
		r.DueMs = now.Add(l.o.backoff(int(r.Attempts))).UnixMilli()
		r.AddEvent(&proto.Event{TimeMs: now.UnixMilli(), Node: l.peer[:], State: r.State, Attempt: r.Attempts, Cause: proto.Clip("failed at the target: "+a.refusal.Detail, 128)})
		return backlog.Requeue
	}
	if r.State.Terminal() {
		return backlog.Keep
	}
	r.Reason = proto.Clip(refusalText(a.refusal), proto.MaxReason)
	r.Move(a.ruling.state, now, refusalText(a.refusal))
	if a.ruling.state == proto.DeadLetter && r.Status == "" {
		r.Status = StatusNew
	}
	return shelve(r)
}

func refusalText(r *proto.Refusal) string {
	if r.GetDetail() == "" {
		return "refused by the target: " + r.GetCode().Name()
	}
	return "refused by the target: " + r.GetCode().Name() + ": " + r.GetDetail()
}

// accepted notes that the target has the task. It may be running already.
func (l *lane) accepted(a *answered, r *proto.Record, now time.Time) backlog.Action {
	if a.receipt != nil {
		r.Receipts = append(r.Receipts, a.receipt)
	}
	if r.State != proto.Pending {
		if a.receipt == nil {
			return backlog.Keep
		}
		return backlog.Write
	}
	cause := ""
	if a.refusal != nil {
		cause = "known there already"
	}
	r.DueMs = 0
	r.Move(proto.Accepted, now, cause)
	r.Events[len(r.Events)-1].Node = l.peer[:]
	return backlog.Write
}

// written follows up on an answer that is on disk. It returns 1 when the task
// will not be sent again.
func (l *lane) written(a *answered, r *proto.Record) int {
	o, k := l.o, a.item.Key
	if a.ruling.effect == spend {
		o.refused(k, r, a.refusal)
		o.changed(k, r)
		return 0
	}
	o.notes.drop(k)
	if r.BodyBlob != "" {
		l.mu.Lock()
		delete(l.arrived, k)
		l.mu.Unlock()
	}
	if k.Part != backlog.PartTask {
		if a.ruling.effect == end {
			o.resultRefused(k, l.peer, a.refusal, note{}, note{}, true)
		}
		if a.ruling.effect == drop {
			o.unneeded(k, l.peer, a.refusal)
		}
		if k.Part == backlog.PartResult && a.ruling.effect == drop && r.BodyBlob != "" {
			o.cfg.Results.Unneeded(r.BodyBlob)
		}
		return 0
	}
	o.seqs.settle(l.peer, r.Seq())
	o.changed(k, r)
	return 1
}
