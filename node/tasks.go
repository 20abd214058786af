package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/wire"
)

// Cancel cancels a task. The task is CANCELLED only once its owner reports that the
// handler and all processes that it started are gone.
func (n *Node) Cancel(ctx context.Context, ref string, hard bool, reason string) (wire.Task, error) {
	id, role, rec, err := n.Views.Find(ctx, ref)
	if err != nil {
		return wire.Task{}, err
	}
	if role == wire.RoleOwner {
		return n.Views.View(id, role, rec), fmt.Errorf("%w: a task can only be cancelled at its home: run this on %s", wire.ErrRefused, n.Views.View(id, role, rec).Peer)
	}
	state, err := n.outbox.Cancel(ctx, id, hard, cmp.Or(reason, "cancelled by an operator"))
	if errors.Is(err, outbox.ErrEnded) {
		return n.Views.View(id, role, rec), fmt.Errorf("%w: task %s has ended as %s", wire.ErrRefused, id, state.Name())
	}
	if err != nil {
		return wire.Task{}, err
	}
	if err := n.Audit.Record(ctx, "task.cancel", id.String()); err != nil {
		return wire.Task{}, err
	}
	return n.Views.Task(ctx, id.String())
}

// Purge removes ended tasks that match; it removes dead letters only if the query names
// their state. It is written to the audit because an operator requested it.
func (n *Node) Purge(ctx context.Context, q wire.Query, dryRun bool) (wire.Purged, error) {
	oq, err := n.Views.Query(q)
	if err != nil {
		return wire.Purged{}, err
	}
	done, err := n.outbox.PurgeDone(ctx, oq, dryRun)
	if err != nil {
		return wire.Purged{}, fmt.Errorf("purge: %w", err)
	}
	if len(q.States) > 0 {
		dead, err := n.outbox.PurgeDead(ctx, oq, dryRun)
		if err != nil {
			return wire.Purged{}, fmt.Errorf("purge dead letters: %w", err)
		}
		done += dead
	}
	if !dryRun {
		if err := n.Audit.Record(ctx, "task.purge", fmt.Sprintf("%d tasks", done)); err != nil {
			return wire.Purged{}, err
		}
	}
	return wire.Purged{Tasks: done, DryRun: dryRun}, nil
}
