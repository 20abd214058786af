package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/proto"
)

// closeRuns writes the second audit record of each command that was interrupted by the
// death of the process: the audit has one start and one end, or one crash, for every run
// (I19). A run is in the audit before its command starts, whether or not the record of its
// task says so. The audit is read from the line on before which all runs have ended.
func (x *Executor) closeRuns(ctx context.Context) error {
	from := x.runs.load()
	open, last, err := x.openRuns(from)
	if last < from { // the file is of another audit
		open, last, err = x.openRuns(0)
	}
	if err != nil && !errors.Is(err, audit.ErrBroken) { // what can be read is
		return fmt.Errorf("read the audit: %w", err)
	}
	for _, e := range open {
		if id, err := proto.ParseTaskID(e.Task); err == nil {
			x.interrupted[cutRun{e.Detail["kind"], id}]++
		}
		seq, err := x.parts.Audit.Append(ctx, crashOf(e, x.cfg.Boot))
		if err != nil {
			return fmt.Errorf("write the audit: %w", err)
		}
		last = max(last, seq)
	}
	x.runs.last = last
	if err := x.runs.save(last); err != nil {
		x.cfg.Logger.Warn("it could not be noted which runs have ended; the next start reads more of the audit log", "err", err)
	}
	return nil
}

// crashOf returns the record that ends a run which began with start.
func crashOf(start audit.Entry, boot uint64) audit.Entry {
	detail := map[string]string{"boot": fmt.Sprint(start.Boot)}
	maps.Copy(detail, start.Detail) // which a damaged record lacks
	start.Action, start.Boot, start.Detail = "command.crash", boot, detail
	return start
}

// A runKey identifies a run in the audit. The id alone does not: senders choose those of mails,
// and mails with one id may be in two boxes, or of two nodes in one, and run at the same time.
type runKey struct {
	actor, kind, check, task, epoch, boot string
	attempt                               int
}

// manyLines is how many lines of the audit are read without a word.
const manyLines = 2 * markEvery

// openRuns returns the starts of runs that have no end, among the lines from a number on, and
// the number of the last line.
func (x *Executor) openRuns(from uint64) (_ map[runKey]audit.Entry, last uint64, err error) {
	open, read := map[runKey]audit.Entry{}, 0
	err = audit.ScanFrom(filepath.Join(x.cfg.Dir, audit.DirName), from, func(r audit.Record) error {
		last = r.Seq
		if read++; read == manyLines {
			x.cfg.Logger.Info("the audit log is read for runs that were cut off, before anything starts", "from_line", from)
		}
		run := runKey{r.Actor, r.Detail["kind"], r.Detail["check"], r.Task, r.Epoch, fmt.Sprint(r.Boot), r.Attempt}
		switch r.Action {
		case "command.start":
			e := r.Entry
			e.Time = x.cfg.Clock.Now()
			open[run] = e
		case "command.end":
			delete(open, run)
		case "command.crash":
			run.boot = r.Detail["boot"]
			delete(open, run)
		}
		return nil
	})
	return open, last, err
}
