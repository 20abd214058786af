package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// conclude makes durable where a claimed task goes after a run.
func (in *Inbox) conclude(ctx context.Context, c *claim, to step, ran *Ran) error {
	if to.state.Terminal() {
		return in.finish(ctx, c, to, ran, true)
	}
	var rec *proto.Record
	errs := in.queue.Change(ctx, []backlog.Edit{{Key: c.key}}, func(_ int, r *proto.Record) backlog.Action {
		to.apply(r, ran, in.cfg.Clock.Now())
		rec = r
		return backlog.Requeue
	})
	if errs[0] != nil {
		return fmt.Errorf("note the end of a run: %w", errs[0])
	}
	in.changed(c.key.ID, rec)
	if rec.Cancel {
		c.version = 0
		return in.finish(ctx, c, cancelledStep(rec), &Ran{}, false)
	}
	return nil
}

// end finishes a claimed task without a start.
func (in *Inbox) end(ctx context.Context, c *claim, e ending) error {
	defer in.release(c)
	return in.finish(ctx, c, step{state: e.state, reason: e.reason}, &Ran{}, false)
}

// endAsFirst finishes a claimed task with the outcome of the first success of
// its idempotency key.
func (in *Inbox) endAsFirst(ctx context.Context, c *claim, first *success) error {
	defer in.release(c)
	r := first.record
	ran := &Ran{End: Success, ExitCode: r.ExitCode, Output: r.Result, ContentType: r.ResultType, Truncated: r.Truncated}
	reason := "not run: task " + first.id.String() + " had the same idempotency key and succeeded"
	if len(r.Result) == 0 && r.ResultSize > 0 {
		reason += "; its result is with that task"
	}
	return in.finish(ctx, c, step{state: proto.Success, reason: reason}, ran, false)
}

// Waits between two tries to write an end.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
	giveUpAt   = 12 * time.Second // a result that finds no room, after some 25 s in all
)

// withoutResult is how a task ends whose result could not be kept. Its effect has
// happened, so it is not run again; it is no success either, since nobody can have
// what it made.
func withoutResult(to step, ran *Ran, err error) (step, *Ran, bool) {
	if to.state == proto.Success {
		to.state = proto.Failed
	}
	why := fmt.Sprintf("RESULT_LOST: the handler ended with %d, but its result of %d bytes could not be kept: %v", ran.ExitCode, ran.Size, err)
	if to.reason != "" {
		why += "; before that: " + to.reason
	}
	to.reason = why
	return to, &Ran{End: Fail, ExitCode: ran.ExitCode, Truncated: true, Stderr: ran.Stderr, Reason: why}, false
}

func (in *Inbox) removeResult(path string) {
	if err := os.Remove(path); err != nil {
		in.cfg.Logger.Warn("a result's file could not be removed", "file", path, "err", err)
	}
}

// finish ends a claimed task: its terminal record and its result on the way home
// are one batch. keep says that a success is remembered for its idempotency key.
// It tries until that is done, the store has failed or the node stops; a task
// left behind so is still running on disk, and judged at the next start.
func (in *Inbox) finish(ctx context.Context, c *claim, to step, ran *Ran, keep bool) error {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := in.tryFinish(ctx, c, to, ran, keep)
		if errors.Is(err, ErrNoRoom) && ran.File != "" && wait >= giveUpAt { // it holds the very room that it needs
			in.cfg.Logger.Error("the result of a task is given up: there is no room for it", "task", c.key.String(), "bytes", ran.Size, "err", err)
			in.removeResult(ran.File)
			to, ran, keep = withoutResult(to, ran, err)
			err = in.tryFinish(ctx, c, to, ran, keep)
		}
		switch {
		case err == nil:
			in.dropBody(c)
			return in.cfg.Fail(PointFinished, c.key.ID)
		case in.store.Err() != nil:
			return fmt.Errorf("finish: %w", in.store.Err())
		case in.desk.halted():
			in.cfg.Logger.Error("the end of a task could not be written before the node stopped", "task", c.key.String(), "err", err)
			return nil
		}
		in.cfg.Logger.Warn("the end of a task could not be written; tried again", "task", c.key.String(), "wait", wait, "err", err)
		in.desk.unwritten(c, err)
		c.version = 0 // the record in hand is changed already
		in.desk.stall(true)
		in.desk.rest(ctx, wait)
		in.desk.stall(false)
	}
}

// tryFinish is one try to finish.
func (in *Inbox) tryFinish(ctx context.Context, c *claim, to step, ran *Ran, keep bool) error {
	now := in.cfg.Clock.Now()
	origin := c.origin
	remember := in.known.keeps(origin, c.epoch)
	edit := backlog.Edit{Key: c.key}
	if c.version > 0 {
		edit.Held, edit.Version = c.rec, c.version
	}
	var f *Finished
	var rec *proto.Record
	st, err := in.queue.Prepare(edit, func(r *proto.Record) backlog.Action {
		to.apply(r, ran, now)
		rec, f = r, in.finished(c.key.ID, origin, r, ran, now)
		r.Stderr = "" // it is on its way home
		if remember {
			return backlog.Shed
		}
		return backlog.Drop
	})
	if err != nil {
		return err
	}
	var kept []byte
	if keep && to.state == proto.Success && rec.IdempotencyKey != "" {
		kept, err = successOf(c.key.ID, rec, ran).encode()
	}
	if err == nil {
		err = in.with.Results.PutResult(ctx, f, func(b *store.Batch) {
			st.Into(b)
			if kept != nil {
				in.keys.Put(b, successKey(origin, rec.IdempotencyKey), kept)
			}
			m := mask{seq: rec.Seq(), notAfter: rec.NotAfterMs, digest: short(rec.RequestDigest), state: rec.State}
			b.After(func() {
				in.known.finished(c.key.ID, m, origin, remember)
				in.keyEnded(rec, kept != nil)
			})
		})
	}
	if err != nil {
		st.Drop()
		return err
	}
	in.cfg.OnChange(c.key.ID, rec)
	return nil
}

// keyEnded gives back the place that a task held for the success of its key,
// unless that was made.
func (in *Inbox) keyEnded(rec *proto.Record, made bool) {
	switch {
	case made:
		in.keys.Made(string(rec.Peer))
	case rec.IdempotencyKey != "":
		in.keys.Free(string(rec.Peer))
	}
}

// successOf is what is kept of a success for its idempotency key.
func successOf(id proto.TaskID, rec *proto.Record, ran *Ran) success {
	r := &proto.Record{ExitCode: rec.ExitCode, ResultSize: rec.ResultSize, ResultDigest: rec.ResultDigest, ResultType: rec.ResultType, Truncated: rec.Truncated}
	if len(ran.Output) <= proto.MaxInlineRecord {
		r.Result = ran.Output
	}
	return success{id: id, record: r}
}

// finished makes what goes home of a task that has ended with rec, and notes the
// result in rec.
func (in *Inbox) finished(id proto.TaskID, origin proto.PeerID, rec *proto.Record, ran *Ran, now time.Time) *Finished {
	digest, size := sha256.Sum256(ran.Output), uint64(len(ran.Output))
	if ran.File != "" {
		copy(digest[:], ran.Digest)
		size = ran.Size
	}
	rec.ResultDigest, rec.ResultSize = digest[:], size
	o := &proto.Outcome{
		State: rec.State, BootId: in.cfg.BootID[:], EpochBoot: rec.SeqBoot, EpochCounter: rec.SeqCounter,
		ExitCode: rec.ExitCode, Reason: rec.Reason, Stderr: rec.Stderr,
		BodySize: size, BodyDigest: digest[:], ContentType: rec.ResultType, Truncated: rec.Truncated,
		Attempts: rec.History, Events: rec.Events[max(len(rec.Events)-maxOutcomeEvents, 0):],
		FinishedMs: now.UnixMilli(),
	}
	if ran.File == "" {
		o.Body = ran.Output
	}
	f := &Finished{
		ID: id, Origin: origin, Kind: rec.Kind, Class: rec.Class, Seq: rec.Seq(), NotAfter: rec.NotAfterMs,
		Outcome: o, File: ran.File,
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

// maxOutcomeEvents is how many of the newest events go home with an outcome.
const maxOutcomeEvents = 16

// statement is what this node states about a task in a receipt.
func (in *Inbox) statement(id proto.TaskID, rec *proto.Record, what proto.Fact, ms int64) proto.Statement {
	s := proto.Statement{Fact: what, Mesh: in.cfg.Mesh, Task: id, Node: in.cfg.Self, Time: ms, Epoch: rec.Seq()}
	if n := len(rec.History); n > 0 {
		s.Attempt = rec.History[n-1].Number
	}
	return s
}

// dropBody removes the file of a body that nobody needs any more. One that stays
// behind is swept: see [Inbox.Holds].
func (in *Inbox) dropBody(c *claim) { in.dropBlob(c.key.ID, c.rec.BodyBlob) }

func (in *Inbox) dropBlob(id proto.TaskID, name string) {
	if name == "" || in.with.Files == nil {
		return
	}
	if err := in.with.Files.Delete(name); err != nil {
		in.cfg.Logger.Warn("the body of a finished task could not be removed", "task", id.String(), "err", err)
	}
}
