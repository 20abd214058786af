package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// The times of a record are those of the wall clock as it was believed then. The
// record also has the time of the boot clock, which never jumps. Once the wall
// clock is not doubted and disagrees with the boot clock, the times are
// corrected, and what was signed with wrong times is signed again (I14). Nothing
// expires before that is done.

const restampStep = 256 // entries checked together

// An offsetRange is the smallest and the largest offset of the wall clock from
// the boot clock, in milliseconds, when the times of entries were taken.
type offsetRange struct{ lo, hi int64 }

var emptyRange = offsetRange{math.MaxInt64, math.MinInt64}

func (s *offsetRange) add(off int64) { s.lo, s.hi = min(s.lo, off), max(s.hi, off) }

// agrees reports whether all of s is close enough to the offset off.
func (s offsetRange) agrees(off int64) bool {
	limit := clock.DoubtBeyond.Milliseconds()
	return s == emptyRange || off-s.lo <= limit && s.hi-off <= limit
}

// stamps tracks whether the times of all live entries agree with the clock.
type stamps struct {
	machine uint32 // identifies the machine start that boot times count from

	mu       *sync.Mutex
	offsets  offsetRange // of the entries, and perhaps of some that have ended
	unknown  bool        // some were created under doubt, before the machine restarted
	scanning bool        // all entries are being checked: until then nothing is known
}

func newStamps(c clock.Clock, boot proto.BootID) stamps {
	return stamps{machine: c.MachineMark(boot[:]), mu: new(sync.Mutex), offsets: emptyRange}
}

// note adds a record that is live from now on.
func (s *stamps) note(r *proto.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.StampMachine == s.machine:
		s.offsets.add(r.CreatedMs - r.StampBootMs)
	case r.StampDoubted:
		s.unknown = true
	}
}

// begin forgets what is known: all entries are noted again before end.
func (s *stamps) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offsets, s.unknown, s.scanning = emptyRange, false, true
}

// end ends a scan. all reports whether all entries were noted; if not, they are
// scanned again.
func (s *stamps) end(all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scanning, s.unknown = false, s.unknown || !all
}

func (s *stamps) consistent(off int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.scanning && !s.unknown && s.offsets.agrees(off)
}

// Stamp records in the record of a draft that its times are taken now.
// [Outbox.Submit] does so unless it was done before.
func (o *Outbox) Stamp(r *proto.Record) {
	r.StampBootMs, r.StampMachine = o.cfg.Clock.Boot().Milliseconds(), o.stamps.machine
	r.StampDoubted = o.cfg.Clock.Doubted()
}

// NotAfter returns when a task of this home expires, in Unix milliseconds. known
// is false while the wall clock is doubted, or the times of tasks are being
// corrected.
func (o *Outbox) NotAfter(id proto.TaskID) (ms int64, known bool) {
	if _, ok := o.trustedNow(); !ok {
		return 0, false
	}
	r, _, err := o.backlog.Get(backlog.TaskKey(id))
	return r.GetNotAfterMs(), err == nil || errors.Is(err, backlog.ErrNotFound)
}

// A clockReading is a reading of the clocks, in milliseconds. The wall clock is
// not doubted.
type clockReading struct {
	wall, boot int64
	machine    uint32
}

// readClock returns the current reading; ok is false while the wall clock is
// doubted.
func (o *Outbox) readClock() (m clockReading, ok bool) {
	c := o.cfg.Clock
	m = clockReading{wall: c.Now().UnixMilli(), boot: c.Boot().Milliseconds(), machine: o.stamps.machine}
	return m, !c.Doubted()
}

// trustedNow returns the wall time in Unix milliseconds. ok reports whether the
// times of all entries agree with it: only then may an entry expire.
func (o *Outbox) trustedNow() (now int64, ok bool) {
	m, ok := o.readClock()
	return m.wall, ok && o.stamps.consistent(m.wall-m.boot)
}

// timeError returns by how much the times of r are wrong, in milliseconds; ok is
// false if they need no check. If r was created under doubt before the machine
// restarted, its real age is unknown: unless its times are plausible, its life
// begins now.
func (m clockReading) timeError(r *proto.Record) (by int64, ok bool) {
	limit := clock.DoubtBeyond.Milliseconds()
	by = m.wall - r.CreatedMs
	if r.StampMachine == m.machine {
		by -= m.boot - r.StampBootMs
		return by, by > limit || by < -limit
	}
	if by >= -limit && m.wall < r.NotAfterMs {
		by = 0
	}
	return by, r.StampDoubted
}

// shift corrects the times of r. A task that may be elsewhere with its old times
// does not expire before those have passed.
func (m clockReading) shift(r *proto.Record, by int64, elsewhere bool) {
	r.CreatedMs += by
	if by > 0 || !elsewhere {
		r.NotAfterMs += by
	}
	if r.DueMs != 0 && !r.DueNamed {
		r.DueMs += by
	}
	if r.StampMachine != m.machine {
		r.StampBootMs, r.StampMachine = m.boot-(m.wall-r.CreatedMs), m.machine
	}
	r.StampDoubted = false
}

// restamp corrects the times of all entries if they disagree with the clock. It
// reports whether they agree now.
func (o *Outbox) restamp(ctx context.Context) (bool, error) {
	m, ok := o.readClock()
	if !ok || o.stamps.consistent(m.wall-m.boot) {
		return ok, nil
	}
	o.stamps.begin()
	moved, err := o.restampAll(ctx, m)
	o.stamps.end(err == nil)
	if moved > 0 {
		o.cfg.Logger.Warn("the times of tasks were corrected: the clock of this machine was wrong when they were created", "count", moved)
	}
	if err != nil {
		return false, fmt.Errorf("correct the times of tasks: %w", err)
	}
	_, ok = o.trustedNow()
	return ok, nil
}

func (o *Outbox) restampAll(ctx context.Context, m clockReading) (moved int, err error) {
	keys := o.backlog.Keys(func(it backlog.Item) bool { return !it.State.Terminal() })
	for len(keys) > 0 && err == nil {
		if err = ctx.Err(); err != nil {
			break
		}
		var some int
		n := min(len(keys), restampStep)
		some, err = o.restampSome(ctx, m, keys[:n])
		moved, keys = moved+some, keys[n:]
	}
	return moved, err
}

// restampSome corrects the times of some entries. Tasks that were created under
// doubt and that no other node has are signed again at once. Others are signed
// again when their target refuses them: what was signed with a believed clock may
// well be right, and the clock wrong now.
func (o *Outbox) restampSome(ctx context.Context, m clockReading, keys []backlog.Key) (moved int, err error) {
	edits := make([]backlog.Edit, len(keys))
	for i, k := range keys {
		edits[i].Key = k
	}
	records, resign := make([]*proto.Record, len(keys)), make([]bool, len(keys))
	errs := o.backlog.Change(ctx, edits, func(i int, r *proto.Record) backlog.Action {
		k := keys[i]
		by, wrong := m.timeError(r)
		if !wrong {
			o.stamps.note(r)
			return backlog.Keep
		}
		task, waits := k.Part == backlog.PartTask, r.State == proto.Pending
		idle := task && waits && !o.maybeSent(k, r)
		resign[i] = idle && by != 0 && r.StampDoubted
		m.shift(r, by, task && !idle)
		o.stamps.note(r)
		if by == 0 || !task {
			return backlog.Write
		}
		moved++
		records[i] = r
		r.StampMoved = waits
		r.AddEvent(&proto.Event{TimeMs: m.wall, State: r.State, Attempt: r.Attempts, Cause: proto.TaskTimesCorrected})
		if idle {
			return backlog.Requeue
		}
		return backlog.Write
	})
	for i, k := range keys {
		switch {
		case errors.Is(errs[i], store.ErrCorrupt):
			o.cfg.Logger.Error("a record of the outbox cannot be read; its times are not corrected", "entry", k.String(), "err", errs[i])
		case errs[i] != nil && !errors.Is(errs[i], backlog.ErrNotFound):
			err = errs[i]
		case errs[i] != nil || records[i] == nil:
		case resign[i]:
			o.resignWithNewTimes(ctx, k)
		default:
			o.changed(k, records[i])
		}
	}
	return moved, err
}

// timesMoved reports whether the times of a refused task may have been corrected
// since it was signed.
func (o *Outbox) timesMoved(a *answeredEntry) bool {
	now, ok := o.backlog.Peek(a.item.Key)
	return ok && a.item.Key.Part == backlog.PartTask && (a.rec.StampMoved || now.Version != a.item.Version)
}

// resignWithNewTimes signs a task again with its corrected times, if its target
// certainly does not have it. The task keeps its sequence, and so its position in
// its ordering key. It reports whether it did; the task is then queued again.
func (o *Outbox) resignWithNewTimes(ctx context.Context, k backlog.Key) bool {
	st, err := o.backlog.Stored(k)
	if err != nil || !st.Record.StampMoved || o.cfg.Reseal == nil {
		return false
	}
	was := st.Record.CreatedMs
	rec, err := o.reseal(ctx, k, st, func(r *proto.Record) backlog.Action {
		if r.State != proto.Pending || r.CreatedMs != was {
			return backlog.Keep
		}
		r.AddEvent(&proto.Event{TimeMs: o.cfg.Clock.Now().UnixMilli(), State: r.State, Attempt: r.Attempts, Cause: proto.TaskSignedAgain})
		return backlog.Requeue
	})
	if err != nil {
		o.cfg.Logger.Warn("a task with wrong times cannot be signed again; will retry when its target refuses it", "task", k.ID.String(), "err", err)
	}
	return rec != nil && err == nil
}

// reseal signs a task again with the sequence and times of st.Record and its
// original lifetime, in one batch with the change that change makes to its
// record; rec is nil if change keeps it.
func (o *Outbox) reseal(ctx context.Context, k backlog.Key, st *proto.Stored, change backlog.Decide) (rec *proto.Record, err error) {
	h, err := proto.ParseHeader(st.GetEnvelope().GetHeader())
	if err != nil {
		return nil, fmt.Errorf("read its header: %w", err)
	}
	notAfter := st.Record.CreatedMs + h.NotAfter - h.Created
	st.Record.NotAfterMs = notAfter
	d, done, err := o.cfg.Reseal(st)
	if err != nil {
		return nil, fmt.Errorf("sign it again: %w", err)
	}
	defer done()
	sig, proofs := o.sign.SignGroup([][32]byte{d.Leaf})
	d.Envelope.Signature, d.Envelope.Path, d.Envelope.Index = sig, proofs[0].Path, proofs[0].Index
	step, err := o.backlog.Prepare(backlog.Edit{Key: k}, func(r *proto.Record) backlog.Action {
		r.BodyBlob, r.NotAfterMs, r.StampMoved = d.Record.GetBodyBlob(), notAfter, false
		return change(r)
	})
	if step == nil {
		return nil, err
	}
	var b store.Batch
	step.AddTo(&b)
	rec = step.Record()
	if err = step.ReplaceInitial(&b, &proto.Stored{Envelope: d.Envelope, Key: d.Key[:], Record: rec}); err == nil {
		err = o.store.Apply(context.WithoutCancel(ctx), &b)
	}
	if err != nil {
		step.Discard()
		return rec, err
	}
	o.submitted.take(k)
	o.deliveries.drop(k)
	o.changed(k, rec)
	return rec, nil
}
