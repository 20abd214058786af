package redrive

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// moveWait is how long Move waits for the end of a task that moves to another queue.
const moveWait = 30 * time.Second

// pendingMoves holds the tasks of this node that are cancelled to move to another queue and
// whose successors do not exist yet. They are in the store too: [Redriver.FinishMoves]
// completes a move that its caller did not wait for or that a crash interrupted.
type pendingMoves struct {
	mu     sync.Mutex
	to     map[proto.TaskID]string
	logged map[proto.TaskID]string // reason logged last why a move could not be completed
}

func (m *pendingMoves) set(id proto.TaskID, queue string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.to[id] = queue
}

func (m *pendingMoves) done(id proto.TaskID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.to, id)
	delete(m.logged, id)
}

func (m *pendingMoves) all() map[proto.TaskID]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.to)
}

// isNew reports whether cause differs from the previous one of its task.
func (m *pendingMoves) isNew(id proto.TaskID, cause string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.logged[id] == cause
	m.logged[id] = cause
	return !known
}

// Move moves a waiting task of this node to a queue. The task becomes a new one,
// because its origin signed the old one for its old target. A running task is stopped
// first; if it ends some other way in the meantime, it stays as it is. The move is
// durable with the cancellation: the new task is created once the old one is CANCELLED,
// whether or not the caller waits for that or asks again.
func (r *Redriver) Move(ctx context.Context, ref, queue string) (wire.Submitted, error) {
	id, role, rec, err := r.tasks.Find(ctx, ref)
	if err != nil {
		return wire.Submitted{}, err
	}
	if _, err := r.HomeOf(queue); err != nil {
		return wire.Submitted{}, err
	}
	goes, err := r.Outbox.MovesTo(id)
	if err != nil {
		return wire.Submitted{}, err
	}
	as, made, err := r.movedAs(rec, queue)
	target := proto.QueueTarget(queue)
	switch {
	case err != nil:
		return wire.Submitted{}, err
	case role == wire.RoleOwner:
		return wire.Submitted{}, fmt.Errorf("%w: a task can only be moved to another queue by its origin: run this on %s", wire.ErrRefused, r.tasks.View(id, role, rec).Peer)
	case made:
		return as, nil
	case goes != "" && goes != queue:
		return wire.Submitted{}, fmt.Errorf("%w: task %s is already moving to queue %s", wire.ErrRefused, id, goes)
	case goes == queue: // requested before
	case rec.GetState().Terminal():
		return wire.Submitted{}, fmt.Errorf("%w: task %s has ended as %s: only an unfinished task can move to another queue", wire.ErrRefused, id, rec.GetState().Name())
	case rec.GetMode() == proto.AtMostOnce:
		return wire.Submitted{}, fmt.Errorf("%w: task %s must not start twice, and may have started: cancel it, check its effects, and send it again", wire.ErrRefused, id)
	case rec.GetTarget() == target:
		return wire.Submitted{}, fmt.Errorf("%w: task %s is already in queue %s", wire.ErrRefused, id, queue)
	default:
		if err := r.cancelInto(ctx, id, rec, queue); err != nil {
			return wire.Submitted{}, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, moveWait)
	defer cancel()
	if _, err = r.Outbox.Wait(wait, id); err != nil {
		return wire.Submitted{}, fmt.Errorf("%w: task %s has been asked to stop but has not stopped yet: it moves to queue %s automatically once it is CANCELLED: %w", wire.ErrRefused, id, queue, err)
	}
	return r.finishMove(ctx, id, queue)
}

// movedAs returns the successor of a task in a queue, if the task has already moved
// there.
func (r *Redriver) movedAs(rec *proto.Record, queue string) (s wire.Submitted, made bool, err error) {
	if rec.GetRedrivenAs() == "" {
		return s, false, nil
	}
	as, err := proto.ParseTaskID(rec.GetRedrivenAs())
	if err != nil {
		return s, false, err
	}
	next, err := r.Outbox.Get(as)
	if err != nil || next.GetTarget() != proto.QueueTarget(queue) {
		return s, false, nil
	}
	return r.Existing(as, wire.Submitted{Target: next.GetTarget()}), true, nil
}

// cancelInto cancels a task that is to move to a queue. It fails if the content of the
// task is not available.
func (r *Redriver) cancelInto(ctx context.Context, id proto.TaskID, rec *proto.Record, queue string) error {
	if _, err := r.rebuildRequest(id, rec); err != nil {
		return err
	}
	_, err := r.Outbox.CancelInto(ctx, id, queue, "moved to queue "+queue+" by an operator")
	if errors.Is(err, outbox.ErrEnded) {
		return fmt.Errorf("%w: task %s has ended in the meantime", wire.ErrRefused, id)
	}
	if err != nil {
		return err
	}
	r.moves.set(id, queue)
	if err := r.Audit(ctx, "task.cancel", id.String()); err != nil {
		return err
	}
	return r.Fail(PointMoving)
}

// finishMove creates the successor of a task that has ended, only once: a concurrent
// second caller finds the existing one.
func (r *Redriver) finishMove(ctx context.Context, id proto.TaskID, queue string) (wire.Submitted, error) {
	r.redriving.Lock()
	defer r.redriving.Unlock()
	rec, err := r.Outbox.Get(id)
	if err != nil {
		return wire.Submitted{}, err
	}
	if as, made, err := r.movedAs(rec, queue); made || err != nil {
		return as, err
	}
	goes, err := r.Outbox.MovesTo(id)
	if err != nil {
		return wire.Submitted{}, err
	}
	if rec.GetState() != proto.Cancelled || rec.GetRedrivenAs() != "" || goes != queue {
		err := r.Outbox.ForgetMove(ctx, id)
		r.moves.done(id)
		return wire.Submitted{}, errors.Join(fmt.Errorf("%w: task %s ended as %s in the meantime", wire.ErrRefused, id, rec.GetState().Name()), err)
	}
	s, err := r.repeat(ctx, id, rec, queue)
	if err != nil {
		return s, err
	}
	r.moves.done(id)
	return s, r.Audit(ctx, "task.set", id.String()+" as "+s.ID+" in "+proto.QueueTarget(queue))
}

// FinishMoves creates the successors of the moving tasks that have ended since they were
// cancelled.
func (r *Redriver) FinishMoves(ctx context.Context) {
	for id, queue := range r.moves.all() {
		rec, err := r.Outbox.Get(id)
		switch {
		case errors.Is(err, outbox.ErrNotFound):
			r.Logger.Error("a task that should move to another queue is no longer stored", "task", id.String(), "queue", queue)
			if err := r.Outbox.ForgetMove(ctx, id); err == nil {
				r.moves.done(id)
			}
			continue
		case err == nil && !rec.GetState().Terminal():
			continue
		}
		if _, err = r.finishMove(ctx, id, queue); err != nil && ctx.Err() == nil && r.moves.isNew(id, err.Error()) {
			r.Logger.Warn("could not move a task to its new queue yet", "task", id.String(), "queue", queue, "err", err)
		}
	}
}
