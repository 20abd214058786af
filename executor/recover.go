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
// task says so. The audit is read only after an unclean stop.
func (x *Executor) closeRuns(ctx context.Context) error {
	if x.parts.Inbox.StoppedClean() {
		return nil
	}
	open, err := x.openRuns()
	if err != nil && !errors.Is(err, audit.ErrBroken) { // what can be read is
		return fmt.Errorf("read the audit: %w", err)
	}
	for _, e := range open {
		if id, err := proto.ParseTaskID(e.Task); err == nil {
			x.interrupted[cutRun{e.Detail["kind"], id}]++
		}
		if _, err := x.parts.Audit.Append(ctx, crashOf(e, x.cfg.Boot)); err != nil {
			return fmt.Errorf("write the audit: %w", err)
		}
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

// openRuns returns the starts of runs that have no end.
func (x *Executor) openRuns() (map[runKey]audit.Entry, error) {
	open := map[runKey]audit.Entry{}
	err := audit.Scan(filepath.Join(x.cfg.Dir, audit.DirName), func(r audit.Record) error {
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
	return open, err
}
