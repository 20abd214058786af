package node

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/wire"
)

// closeRuns writes the second audit record of each command that was interrupted by the
// death of the process: the audit has one start and one end, or one crash, for every run
// (I19). The audit is read only if something was running.
func (n *Node) closeRuns(ctx context.Context) error {
	cut := map[string]bool{}
	running := func(id proto.TaskID, r *proto.Record) bool {
		if r.GetState() == proto.Running {
			cut[id.String()] = true
		}
		return false
	}
	for span := (backlog.Span{Oldest: true}); ; {
		_, next, err := n.inbox.List(span, wire.MaxPage, running)
		if err != nil {
			return err
		}
		if span.From = next; next.IsZero() {
			break
		}
	}
	if len(cut) == 0 {
		return nil
	}
	open, err := n.openRuns(cut)
	if err != nil {
		return fmt.Errorf("read the audit: %w", err)
	}
	for _, e := range open {
		e.Action, e.Exit, e.Detail = "command.crash", nil, map[string]string{"kind": e.Detail["kind"], "boot": fmt.Sprint(e.Boot)}
		e.Boot = n.outbox.Boot()
		if _, err := n.storage.Audit.Append(ctx, e); err != nil {
			return fmt.Errorf("write the audit: %w", err)
		}
	}
	return nil
}

// openRuns returns the starts of runs of the given tasks that have no end.
func (n *Node) openRuns(tasks map[string]bool) (map[string]audit.Entry, error) {
	open := map[string]audit.Entry{}
	err := audit.Scan(filepath.Join(n.cfg.Dir, audit.DirName), func(r audit.Record) error {
		if !tasks[r.Task] {
			return nil
		}
		run := fmt.Sprintf("%s %d %d", r.Task, r.Boot, r.Attempt)
		switch r.Action {
		case "command.start":
			e := r.Entry
			e.Time = n.cfg.Clock.Now()
			open[run] = e
		case "command.end":
			delete(open, run)
		case "command.crash":
			delete(open, fmt.Sprintf("%s %s %d", r.Task, r.Detail["boot"], r.Attempt))
		}
		return nil
	})
	return open, err
}
