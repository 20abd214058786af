package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// conclude commits the next state of a task after a run.
func (in *Inbox) conclude(ctx context.Context, j *job, to transition, res *handler.Result) error {
	if to.state.Terminal() {
		return in.finish(ctx, j, to, res, true)
	}
	in.removeResult(res)
	var rec *proto.Record
	errs := in.queue.Change(ctx, []backlog.Edit{j.edit()}, func(_ int, r *proto.Record) backlog.Action {
		in.addStart(j, r)
		to.apply(r, res, in.cfg.Clock.Now())
		rec = r
		return backlog.Requeue
	})
	if errs[0] != nil {
		return fmt.Errorf("record the end of a run: %w", errs[0])
	}
	j.stale, j.unwritten = true, false
	in.changed(j.key.ID, rec)
	if rec.Cancel {
		return in.finish(ctx, j, cancelledStep(rec), &handler.Result{}, false)
	}
	return nil
}

// end finishes a task without a start.
func (in *Inbox) end(ctx context.Context, j *job, e ending) error {
	defer in.dropJob(j)
	return in.finish(ctx, j, transition{state: e.state, cause: e.cause, reason: e.reason, code: e.code, mayHaveRun: e.mayHaveRun}, &handler.Result{}, false)
}

// endAsFirst finishes a task with the outcome of the first success of its idempotency key.
func (in *Inbox) endAsFirst(ctx context.Context, j *job, first *success) error {
	defer in.dropJob(j)
	r := first.record
	res := &handler.Result{Outcome: handler.Success, Code: int(r.ExitCode), Output: r.Result, ContentType: r.ResultType, Truncated: r.Truncated}
	return in.finish(ctx, j, transition{state: proto.Success, cause: proto.TaskSucceededBefore, reason: first.id.String()}, res, false)
}

// Delays between attempts to write an end.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second // after some 51 s in all
	giveUpAt   = 12 * time.Second // a result without room is given up, after some 13 s in all
)

// withoutResult returns how a task ends whose result could not be stored. Its effect has
// happened, so it is not run again; it is not a success either, since the result is lost.
func withoutResult(to transition, res *handler.Result, err error) (transition, *handler.Result, bool) {
	if to.state == proto.Success {
		to.state = proto.Failed
	}
	why := fmt.Sprintf("%d bytes: %v", uint64(res.Size), err)
	if to.cause != 0 {
		why += strings.TrimSuffix("; before that: "+to.cause.Name()+": "+to.reason, ": ")
	}
	to.cause, to.reason = proto.TaskResultLost, why
	return to, &handler.Result{Outcome: handler.Fail, Code: res.Code, Truncated: true, Stderr: res.Stderr, Reason: why}, false
}

// removeResult removes the file of a result, if it has one.
func (in *Inbox) removeResult(res *handler.Result) {
	if res.File == "" {
		return
	}
	if err := os.Remove(res.File); err != nil {
		in.cfg.Logger.Warn("a result's file could not be removed", "file", res.File, "err", err)
	}
}

// finish ends a task: its terminal record and its result are one batch. keep means that a
// success is stored for its idempotency key. It retries until that succeeds, the store has
// failed or the node stops; a task that is left then is still running on disk, and handled
// at the next start. An origin that stays unknown gets no result.
func (in *Inbox) finish(ctx context.Context, j *job, to transition, res *handler.Result, keep bool) error {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := in.tryFinish(ctx, j, to, res, keep, true)
		if errors.Is(err, ErrNoRoom) && res.File != "" && wait >= giveUpAt { // the result occupies the very room that it needs
			in.cfg.Logger.Error("the result of a task is dropped: there is no room for it", "task", j.key.String(), "bytes", res.Size, "err", err)
			in.removeResult(res)
			to, res, keep = withoutResult(to, res, err)
			err = in.tryFinish(ctx, j, to, res, keep, true)
		}
		if errors.Is(err, ErrNoOrigin) && wait >= lastRetry {
			err = in.finishUntold(ctx, j, to, res, keep, err)
		}
		switch {
		case err == nil:
			in.dropBody(j)
			return in.cfg.Fail(PointFinished)
		case in.store.Err() != nil:
			return fmt.Errorf("finish: %w", in.store.Err())
		case in.slots.halted():
			in.cfg.Logger.Error("the end of a task could not be written before the node stopped", "task", j.key.String(), "err", err)
			in.endLost.Store(true)
			return nil
		}
		in.cfg.Logger.Warn("the end of a task could not be written; retrying", "task", j.key.String(), "wait", wait, "err", err)
		in.slots.setWriteError(j, err)
		j.stale = true // the record in memory was changed already
		in.slots.setStalled(j, true)
		in.slots.sleep(ctx, wait)
		in.slots.setStalled(j, false)
	}
}

// statusUntold is the status of the record of a task that ended without a result for its origin.
const statusUntold = "untold"

// finishUntold finishes a task without telling its origin, which is no longer known because of
// why: others wait for its place. An origin that is still a member was introduced again by now.
// The task stays known until its time is over, whatever its origin has settled: no result of it
// is here, and an origin that comes back would send a task that is not known here again.
func (in *Inbox) finishUntold(ctx context.Context, j *job, to transition, res *handler.Result, keep bool, why error) error {
	if err := in.tryFinish(ctx, j, to, res, keep, false); err != nil {
		return err
	}
	in.cfg.Logger.Error("a task ends without a result for its origin, which could not be sealed", "task", j.key.String(), "state", to.state.Name(), "err", why)
	in.removeResult(res)
	return nil
}

// tryFinish tries once to finish a task. tell means that its origin gets the result.
func (in *Inbox) tryFinish(ctx context.Context, j *job, to transition, res *handler.Result, keep, tell bool) error {
	now := in.cfg.Clock.Now()
	origin := j.origin
	remember := in.dedup.mustRemember(origin, j.epoch)
	var f *Finished
	var rec *proto.Record
	st, err := in.queue.Prepare(j.edit(), func(r *proto.Record) backlog.Action {
		in.addStart(j, r)
		to.apply(r, res, now)
		rec, f = r, in.finished(j.key.ID, origin, r, res, now)
		r.Stderr = "" // it is in the result
		if !tell {
			r.Status, remember = statusUntold, true
		}
		if remember {
			return backlog.Tombstone
		}
		return backlog.Drop
	})
	if err != nil {
		return err
	}
	var kept []byte
	if keep && to.state == proto.Success && rec.IdempotencyKey != "" {
		kept, err = successOf(j.key.ID, rec, res).encode()
	}
	if err == nil {
		err = in.writeEnd(ctx, f, tell, func(b *store.Batch) {
			st.AddTo(b)
			if kept != nil {
				in.keys.Put(b, successKey(origin, rec.IdempotencyKey), kept)
			}
			e := entry{seq: rec.Seq(), notAfter: rec.NotAfterMs, digest: short(rec.RequestDigest), state: rec.State, untold: !tell}
			b.After(func() {
				in.setFinished(j.key.ID, e, origin, remember)
				in.keyEnded(rec, kept != nil)
			})
		})
	}
	if err != nil {
		st.Discard()
		return err
	}
	in.cfg.OnChange(j.key.ID, rec)
	return nil
}

// writeEnd writes what also adds, with the result f if its origin is told.
func (in *Inbox) writeEnd(ctx context.Context, f *Finished, tell bool, also func(*store.Batch)) error {
	if tell {
		return in.parts.Results.PutResult(ctx, f, also)
	}
	var b store.Batch
	also(&b)
	err := in.store.Apply(ctx, &b)
	if err == nil {
		in.cfg.OnUntold(f)
	}
	return err
}

// keyEnded returns the place reserved for the success of a task's key, unless it was used.
func (in *Inbox) keyEnded(rec *proto.Record, made bool) {
	switch {
	case made:
		in.keys.Commit(string(rec.Peer))
	case rec.IdempotencyKey != "":
		in.keys.Release(string(rec.Peer))
	}
}

// successOf returns what is stored of a success for its idempotency key.
func successOf(id proto.TaskID, rec *proto.Record, res *handler.Result) success {
	r := &proto.Record{ExitCode: rec.ExitCode, ResultSize: rec.ResultSize, ResultDigest: rec.ResultDigest, ResultType: rec.ResultType, Truncated: rec.Truncated}
	if len(res.Output) <= proto.MaxInlineRecord {
		r.Result = res.Output
	}
	return success{id: id, record: r}
}

// finished returns the result to deliver for a task that has ended with rec, and records
// the result in rec.
func (in *Inbox) finished(id proto.TaskID, origin proto.PeerID, rec *proto.Record, res *handler.Result, now time.Time) *Finished {
	digest, size := sha256.Sum256(res.Output), uint64(len(res.Output))
	if res.File != "" {
		copy(digest[:], res.Digest)
		size = uint64(res.Size)
	}
	rec.ResultDigest, rec.ResultSize = digest[:], size
	o := &proto.Outcome{
		State: rec.State, Code: rec.Code, BootId: in.cfg.BootID[:], EpochBoot: rec.SeqBoot, EpochCounter: rec.SeqCounter,
		ExitCode: rec.ExitCode, Cause: rec.Cause, Reason: rec.Reason, MayHaveRun: rec.MayHaveRun, Stderr: rec.Stderr,
		BodySize: size, BodyDigest: digest[:], ContentType: rec.ResultType, Truncated: rec.Truncated,
		Attempts: rec.History, Events: rec.Events[max(len(rec.Events)-maxOutcomeEvents, 0):],
		FinishedMs: now.UnixMilli(),
	}
	if res.File == "" {
		o.Body = res.Output
	}
	f := &Finished{
		ID: id, Origin: origin, Kind: rec.Kind, Class: rec.Class, Seq: rec.Seq(),
		Outcome: o, File: res.File, Statements: make([]proto.Statement, 0, 2),
	}
	if n := len(rec.History); n > 0 {
		last := rec.History[n-1]
		o.StartedMs = last.StartedMs
		f.Statements = append(f.Statements, in.statement(id, rec, proto.FactStarted, last.StartedMs))
	}
	done := in.statement(id, rec, proto.FactDone, now.UnixMilli())
	done.State, done.Algorithm, done.Digest = rec.State, 1, digest
	f.Statements = append(f.Statements, done)
	return f
}

// maxOutcomeEvents is how many of the newest events an outcome contains.
const maxOutcomeEvents = 16

// statement returns this node's statement about a task, for a receipt.
func (in *Inbox) statement(id proto.TaskID, rec *proto.Record, what proto.Fact, ms int64) proto.Statement {
	s := proto.Statement{Fact: what, Mesh: in.cfg.Mesh, Task: id, Node: in.cfg.Self, Time: ms, Epoch: rec.Seq()}
	if n := len(rec.History); n > 0 {
		s.Attempt = rec.History[n-1].Number
	}
	return s
}

// dropBody says that the body of a task is no longer needed.
func (in *Inbox) dropBody(j *job) { in.dropBlob(j.rec.BodyBlob) }

func (in *Inbox) dropBlob(name string) {
	if name != "" && in.parts.Files != nil {
		in.parts.Files.Drop(name)
	}
}
