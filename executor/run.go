package executor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/agent"
	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A worker calls a handler for tasks of one kind: it gives each run a folder, records
// runs in the audit log and hands over large results as files.
type worker struct {
	exec    *Executor
	spec    wire.HandlerSpec
	typ     handlerType
	handler handler.Handler
}

// Run calls the handler once and returns when nothing of the run is left.
func (w worker) Run(ctx context.Context, r *handler.Run) *handler.Result {
	unready := func(err error) *handler.Result {
		return &handler.Result{Outcome: handler.Unready, Code: -1, Reason: err.Error()}
	}
	r.MaxOutput = int64(min(r.Content.GetOptions().GetMaxResult(), math.MaxInt64))
	out := w.exec.quotas.newOutput()
	defer out.release()
	r.Quota, r.BodyQuota = out, bodyQuota{w.exec.quotas}
	if err := w.exec.quotas.mustWait(r.ID, w.maxOutput(r)); err != nil {
		return unready(err)
	}
	if w.typ.files {
		var err error
		if r.Dir, err = w.exec.runFolder(r, w.spec.RunAs != ""); err != nil {
			return unready(err)
		}
		defer func() {
			if err := command.RemoveAll(r.Dir); err != nil {
				w.exec.cfg.Logger.Warn("the folder of a run could not be removed; it stays until the next start", "task", r.ID.String(), "err", err)
			}
		}()
	}
	// A start whose writer gave up may be there all the same, without an end.
	run, err := w.auditStart(context.WithoutCancel(ctx), r)
	if err != nil {
		return unready(fmt.Errorf("the audit log could not be written, so nothing was started: %w", err))
	}
	res := handler.Call(ctx, w.handler, r)
	if err := w.auditEnd(context.WithoutCancel(ctx), run, r, res); err != nil {
		w.exec.cfg.Logger.Error("the end of a command could not be written to the audit log", "task", r.ID.String(), "err", err)
	}
	if res.Outcome == handler.NoSpace {
		w.exec.quotas.noteStarved(r.ID)
	}
	return w.keep(r, out, res)
}

// Admit lets the handler refuse a task by its content.
func (w worker) Admit(content *proto.Content) error {
	if a, ok := w.handler.(handler.Admitter); ok {
		return a.Admit(content)
	}
	return nil
}

// maxOutput is how many bytes a run may write: the limit of the handler or of the
// task, whichever is smaller.
func (w worker) maxOutput(r *handler.Run) int64 {
	limit := cmp.Or(w.spec.MaxOutput, agent.DefaultMaxOutput)
	if r.MaxOutput > 0 {
		return min(limit, r.MaxOutput)
	}
	return limit
}

// auditStart records the start of a run. A built-in handler has no effect outside the node, so
// nothing is recorded.
func (w worker) auditStart(ctx context.Context, r *handler.Run) (uint64, error) {
	if !w.typ.audited {
		return 0, nil
	}
	return w.exec.runs.start(ctx, w.entry("command.start", r, r.Content.GetArgs()))
}

// auditEnd records the end of the run with this number.
func (w worker) auditEnd(ctx context.Context, run uint64, r *handler.Run, res *handler.Result) error {
	if !w.typ.audited {
		return nil
	}
	e := w.entry("command.end", r, r.Content.GetArgs())
	e.Exit, e.Detail["outcome"] = &res.Code, res.Outcome.String()
	return w.exec.runs.end(ctx, run, e)
}

// entry describes a run, or a probe, whose program has args behind those of the handler.
func (w worker) entry(action string, r *handler.Run, args []string) audit.Entry {
	e := audit.Entry{
		Time: w.exec.cfg.Clock.Now(), // an end may be written later
		Boot: w.exec.cfg.Boot, Actor: r.Origin.String(), Action: action, Task: r.ID.String(), Attempt: r.Attempt,
		Epoch: fmt.Sprintf("%d.%d", r.Epoch.Boot, r.Epoch.Counter), Detail: map[string]string{"kind": r.Content.GetKind()},
	}
	if argv := slices.Concat(w.spec.Exec, args); len(w.spec.Exec) > 0 {
		e.ArgvHash, e.Argv = audit.HashArgv(argv), audit.Redact(argv, len(w.spec.Exec))
	}
	return e
}

// A prober is a worker whose handler can report whether the work of a key was done.
type prober struct {
	worker
	asks handler.Prober
}

// auditRetry is the time between two attempts to write the start of a probe.
const auditRetry = time.Second

// Probe asks the handler. What is asked is in the audit like a run. While its start cannot be
// written, nothing is asked: the answer Unknown would end the task.
func (p prober) Probe(ctx context.Context, r *handler.Run) (found handler.ProbeResult) {
	entry := func(action string) audit.Entry {
		e := p.entry(action, r, []string{command.ProbeFlag, r.Key()})
		e.Detail["check"] = "yes"
		return e
	}
	var run uint64
	for n := 0; ; n++ {
		var err error
		if run, err = p.exec.runs.start(context.WithoutCancel(ctx), entry("command.start")); err == nil {
			break
		}
		if n == 0 {
			p.exec.cfg.Logger.Error("the audit log cannot be written, so the program is not asked yet about an interrupted run", "task", r.ID.String(), "err", err)
		}
		select {
		case <-ctx.Done():
			return handler.Unknown
		case <-time.After(auditRetry):
		}
	}
	defer func() { // also if the handler panics
		end := entry("command.end")
		end.Detail["outcome"] = found.String()
		if err := p.exec.runs.end(context.WithoutCancel(ctx), run, end); err != nil {
			p.exec.cfg.Logger.Error("the end of a command could not be written to the audit log", "task", r.ID.String(), "err", err)
		}
	}()
	return p.asks.Probe(ctx, r)
}

// runFolder creates a folder for a run. With others set, its parent can be traversed
// but not listed by other users, because the run belongs to one of them.
func (x *Executor) runFolder(r *handler.Run, others bool) (string, error) {
	dir, err := x.runsFolder(others)
	if err != nil {
		return "", fmt.Errorf("make a folder for the run: %w", err)
	}
	dir, err = os.MkdirTemp(dir, r.ID.String()+"-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the run: %w", err)
	}
	return dir, nil
}

// runsFolder creates the folder that holds the folders of runs.
func (x *Executor) runsFolder(others bool) (string, error) {
	dir := filepath.Join(x.cfg.Dir, datadir.Run)
	err := os.MkdirAll(dir, 0o700)
	if err == nil && others {
		err = os.Chmod(dir, 0o711)
	}
	return dir, err
}

// mayRunAs returns why the program of s cannot run as its user.
func (x *Executor) mayRunAs(s wire.HandlerSpec) error {
	if s.RunAs == "" {
		return nil
	}
	dir, err := x.runsFolder(true)
	if err != nil {
		return err
	}
	return command.MayRunAs(s.RunAs, dir)
}

// keep returns res as the inbox takes it: a large output is moved out of the run's
// folder, which is removed.
func (w worker) keep(r *handler.Run, out *runOutput, res *handler.Result) *handler.Result {
	res.ContentType = cmp.Or(res.ContentType, "application/octet-stream")
	res.Stderr = strings.ToValidUTF8(res.Stderr, "?")
	switch {
	case res.File == "":
	case res.Outcome == handler.NoSpace, res.Outcome == handler.Unready: // the run is repeated
		res.File, res.Output = "", nil
	default:
		if err := w.exec.keepOutput(r, out, res); err != nil {
			return &handler.Result{Outcome: handler.Retry, Code: res.Code, Reason: fmt.Sprintf("keep the result: %v", err), Stderr: res.Stderr}
		}
	}
	return res
}

// keepOutput moves the file of res to where the end of the run takes it from. On failure it
// stays in the run's folder.
func (x *Executor) keepOutput(r *handler.Run, out *runOutput, res *handler.Result) error {
	f, err := os.Open(res.File)
	if err != nil {
		return err
	}
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	path := filepath.Join(x.cfg.Dir, datadir.Run, r.ID.String()+".out")
	if err := os.Rename(res.File, path); err != nil {
		return err
	}
	res.File, res.Size, res.Digest = path, size, sum.Sum(nil)
	out.handOver(path)
	return nil
}
