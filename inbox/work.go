package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// work calls the handler of a started task and commits the outcome.
func (rn *runner) work(jobCtx context.Context, j *job) error {
	defer rn.dropJob(j)
	res := rn.handle(jobCtx, j)
	why := rn.slots.release(j, len(res.Output)+len(res.Stderr))
	rn.slots.settleNote(j)
	if err := rn.cfg.Fail(PointFinish); err != nil {
		return err
	}
	l := rn.limits
	l.maxAttempts = j.h.maxAttempts(j.rec.Options.GetMaxAttempts())
	return rn.conclude(jobCtx, j, l.after(j.rec, res, why, rn.cfg.Rand()), res)
}

// probe asks the handler of an interrupted task whether it had its effect, in its turn: at a
// start more tasks may have a slot than there are.
func (rn *runner) probe(jobCtx context.Context, j *job) error {
	defer rn.dropJob(j)
	select {
	case rn.probing <- struct{}{}:
		defer func() { <-rn.probing }()
	case <-rn.slots.halting:
	}
	if rn.slots.halted() {
		return nil // probed at the next start
	}
	found := rn.ask(jobCtx, j)
	if rn.slots.release(j, 0) == stopNode {
		return nil // probed again at the next start
	}
	if found == handler.NotAsked && !rn.over(j.rec.NotAfterMs) {
		rn.queue.Release(j.key, skipRetry)
		return nil
	}
	to := rn.limits.afterCrash(j.rec, j.h.OnCrash, found, rn.cfg.Rand())
	return rn.conclude(jobCtx, j, to, &handler.Result{Outcome: handler.Success})
}

// probes reports whether the handler of an interrupted task is asked whether it had its
// effect.
func (j *job) probes() bool {
	return j.h != nil && j.h.OnCrash == OnCrashProbe && j.rec.Mode != proto.AtMostOnce
}

// over reports whether a task's time is over, so that its handler is not asked again.
func (in *Inbox) over(notAfter int64) bool {
	return in.nowMs() > notAfter && !in.cfg.Clock.Doubted()
}

// ask calls a handler's probe once.
func (rn *runner) ask(jobCtx context.Context, j *job) (found handler.ProbeResult) {
	ctx, done := rn.attach(jobCtx, j)
	defer done()
	r, ended := rn.prepare(ctx, j)
	if ended != nil && ended.Outcome == handler.Unready {
		return handler.NotAsked
	}
	if ended != nil {
		return handler.Unknown
	}
	defer r.close()
	if !rn.begin(j) {
		return handler.Unknown
	}
	defer func() {
		if p := recover(); p != nil {
			rn.cfg.Logger.Error("a probe panicked", "task", j.key.String(), "panic", p)
			found = handler.Unknown
		}
	}()
	return j.h.Handler.(handler.Prober).Probe(ctx, &r.Run)
}

// handle runs the handler once. A panic counts as a crash of the handler.
func (rn *runner) handle(jobCtx context.Context, j *job) (res *handler.Result) {
	ctx, done := rn.attach(jobCtx, j)
	defer done()
	r, ended := rn.prepare(ctx, j)
	if ended != nil {
		return ended
	}
	defer r.close()
	if rn.denies(j) { // the list has changed since the start was decided
		return &handler.Result{Outcome: handler.Unready, Reason: "denied: the handler's allow list does not name the origin"}
	}
	if !rn.begin(j) {
		return &handler.Result{Outcome: handler.Cancelled}
	}
	res = handler.Call(ctx, j.h.Handler, &r.Run)
	if len(res.Output) > proto.MaxInlineBody {
		res.Output, res.Truncated = res.Output[:proto.MaxInlineBody], true
	}
	return res
}

// denies reports whether the handler of a job's kind does not allow its senders now (I17).
func (in *Inbox) denies(j *job) bool {
	h := in.handlers.find(j.kind)
	if h == nil {
		return false // it was removed: what has started may run
	}
	var delegates []proto.PeerID
	if j.lease != nil {
		delegates = j.lease.Delegates
	}
	return !h.allowsAll(j.origin, delegates, in.parts.Members)
}

// attach returns the context of a run, already cancelled if the run was told to stop. The
// caller calls done when the handler has returned.
func (rn *runner) attach(jobCtx context.Context, j *job) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(jobCtx)
	rn.slots.attach(j, cancel)
	return ctx, func() {
		if j.timer != nil {
			j.timer.Stop()
		}
		cancel(nil)
	}
}

// begin starts the timeout of a run. It returns false if the run was told to stop before.
func (rn *runner) begin(j *job) bool {
	if !rn.slots.begin(j, rn.cfg.Clock.Now(), rn.cfg.Clock.Boot()) {
		return false
	}
	if t := j.h.Timeout; t > 0 {
		j.timer = time.AfterFunc(t, func() { rn.slots.stop(j, stopTimeout, false) })
	}
	return true
}

// A prepared is a run with its body open.
type prepared struct {
	handler.Run
	closer io.Closer
}

func (p *prepared) close() {
	if p.closer != nil {
		p.closer.Close()
	}
}

// prepare opens the content and body of a task and verifies the signed digest (I9). If that
// fails, ended is the result of the run.
func (in *Inbox) prepare(ctx context.Context, j *job) (r *prepared, ended *handler.Result) {
	content, err := in.content(j)
	if err != nil {
		return nil, unprepared("the task cannot be opened", err)
	}
	r = &prepared{Run: handler.Run{
		ID: j.key.ID, Attempt: int(j.attempt), Epoch: j.epoch, Origin: j.origin,
		Content: content, BodySize: int64(content.BodySize), Kill: j.kill,
	}}
	if err := in.body(ctx, j, content, r); err != nil {
		return nil, unprepared("the body cannot be read", err)
	}
	return r, nil
}

// unprepared returns the result of a run that was not started because of err.
func unprepared(what string, err error) *handler.Result {
	reason := fmt.Sprintf("%s: %v", what, err)
	switch {
	case errors.Is(err, errFetchAgain):
		return &handler.Result{Outcome: handler.Unready, Reason: err.Error()}
	case errors.Is(err, errIntegrity):
		return &handler.Result{Outcome: unusable, Reason: err.Error()}
	case tooManyFiles(err):
		return &handler.Result{Outcome: handler.Unready, Reason: reason}
	}
	return &handler.Result{Outcome: handler.Retry, Reason: reason}
}

// tooManyFiles reports whether a file could not be opened because too many are: it is
// intact, and can be read later.
func tooManyFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// content opens the sealed content of a task.
func (in *Inbox) content(j *job) (*proto.Content, error) {
	if f := in.fresh.take(j.key); f != nil {
		return f.content, nil
	}
	st := j.stored
	if err := in.restoreBody(st, j.rec.BodyBlob); err != nil {
		return nil, err
	}
	return in.parts.Opener.Content(st)
}

// restoreBody reads the sealed body of a task from the file name, if it is stored there.
func (in *Inbox) restoreBody(st *proto.Stored, name string) (err error) {
	if st.Envelope == nil || len(st.Envelope.Body) > 0 || name == "" || streamed(st.Envelope) {
		return nil
	}
	if in.parts.Files == nil {
		return errNoFiles
	}
	st.Envelope.Body, err = in.parts.Files.Get(name)
	return err
}

// streamed reports whether the body of an envelope is a stream.
func streamed(e *proto.Envelope) bool {
	h, err := proto.ParseHeader(e.Header)
	return err == nil && h.Streamed()
}

// errIntegrity is returned for a body that does not match the signed digest.
var errIntegrity = errors.New("inbox: the body does not match its signature")

// errFetchAgain is returned when the body of a granted task is missing. Its home still has
// it.
var errFetchAgain = errors.New("inbox: the body is no longer here")

// body sets the body of the run after verifying all of it. A streamed one is read twice:
// the handler must not get a byte of any other.
func (in *Inbox) body(ctx context.Context, j *job, content *proto.Content, r *prepared) error {
	if !streamed(j.stored.Envelope) {
		if err := checkDigest(content, sha256.Sum256(content.Body), len(content.Body)); err != nil {
			return err
		}
		r.Body = bytes.NewReader(content.Body)
		return nil
	}
	if in.parts.Bodies == nil {
		return errNoFiles
	}
	if j.lease != nil && !in.hasBody(j.rec.BodyBlob) {
		return errFetchAgain
	}
	if err := in.digest(ctx, content); err != nil {
		return err
	}
	rc, err := in.parts.Bodies.Open(content)
	if err != nil {
		return err
	}
	r.Body, r.closer = rc, rc
	return nil
}

// digest reads and verifies a streamed body.
func (in *Inbox) digest(ctx context.Context, content *proto.Content) error {
	rc, err := in.parts.Bodies.Open(content)
	if err != nil {
		return err
	}
	defer rc.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, handler.ContextReader(ctx, rc))
	if err != nil {
		return err
	}
	return checkDigest(content, [32]byte(sum.Sum(nil)), int(n))
}

func checkDigest(c *proto.Content, sum [32]byte, size int) error {
	switch {
	case uint64(size) != c.BodySize:
		return fmt.Errorf("%w: %d bytes, but %d were signed", errIntegrity, size, c.BodySize)
	case size == 0 && len(c.BodyDigest) == 0:
		return nil
	case !bytes.Equal(sum[:], c.BodyDigest):
		return fmt.Errorf("%w: its digest differs", errIntegrity)
	}
	return nil
}
