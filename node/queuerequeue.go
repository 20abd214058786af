package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
)

// moveWait is how long the end of a task is awaited that goes to another queue.
const moveWait = 30 * time.Second

// moves are the tasks of this node that are cancelled to go to another queue, and whose
// successors are not made yet. The store has them too: what a caller does not wait for,
// or a crash cut off, is finished by [Node.finishMoves].
type moves struct {
	mu   sync.Mutex
	to   map[proto.TaskID]string
	told map[proto.TaskID]string // why one could not be finished, as it was logged
}

func (m *moves) set(id proto.TaskID, queue string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.to[id] = queue
}

func (m *moves) done(id proto.TaskID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.to, id)
	delete(m.told, id)
}

func (m *moves) all() map[proto.TaskID]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.to)
}

// news reports whether cause is another one than the last of its task.
func (m *moves) news(id proto.TaskID, cause string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.told[id] == cause
	m.told[id] = cause
	return !known
}

// MoveTask takes a task of this node out of where it waits and puts it into a queue,
// as a new task: its origin signed it for the one, and signs it for the other. One
// that runs is stopped first; one that ends otherwise meanwhile stays as it is. That it
// goes to the queue is durable with the cancellation: the new task is made once the old
// one is CANCELLED, whether or not the caller waits for that or asks again.
func (n *Node) MoveTask(ctx context.Context, ref, queue string) (Submitted, error) {
	id, role, rec, err := n.find(ref)
	if err != nil {
		return Submitted{}, err
	}
	if _, err := n.queues.homeOf(queue); err != nil {
		return Submitted{}, err
	}
	goes, err := n.outbox.MovesTo(id)
	if err != nil {
		return Submitted{}, err
	}
	as, made, err := n.movedAs(rec, queue)
	target := queuePrefix + queue
	switch {
	case err != nil:
		return Submitted{}, err
	case role == RoleOwner:
		return Submitted{}, fmt.Errorf("%w: a task is put into another queue where it was made: ask %s", ErrRefused, n.view(id, role, rec).Peer)
	case made:
		return as, nil
	case goes != "" && goes != queue:
		return Submitted{}, fmt.Errorf("%w: task %s is on its way to queue %s", ErrRefused, id, goes)
	case goes == queue: // it was asked for before
	case rec.GetState().Terminal():
		return Submitted{}, fmt.Errorf("%w: task %s has ended as %s: only one that waits can go to another queue", ErrRefused, id, rec.GetState().Name())
	case rec.GetMode() == proto.AtMostOnce:
		return Submitted{}, fmt.Errorf("%w: task %s may start only once, and may have: cancel it, see what it did, and send it anew", ErrRefused, id)
	case rec.GetTarget() == target:
		return Submitted{}, fmt.Errorf("%w: task %s is in queue %s already", ErrRefused, id, queue)
	default:
		if err := n.cancelInto(ctx, id, rec, queue); err != nil {
			return Submitted{}, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, moveWait)
	defer cancel()
	if _, err = n.outbox.Wait(wait, id); err != nil {
		return Submitted{}, fmt.Errorf("%w: task %s was asked to stop and has not yet: once it is CANCELLED it goes to queue %s by itself: %w", ErrRefused, id, queue, err)
	}
	return n.finishMove(ctx, id, queue)
}

// movedAs returns what a task became in a queue, if it went there before.
func (n *Node) movedAs(rec *proto.Record, queue string) (s Submitted, made bool, err error) {
	if rec.GetRedrivenAs() == "" {
		return s, false, nil
	}
	as, err := proto.ParseTaskID(rec.GetRedrivenAs())
	if err != nil {
		return s, false, err
	}
	next, err := n.outbox.Get(as)
	if err != nil || next.GetTarget() != queuePrefix+queue {
		return s, false, nil
	}
	return n.known(as, Submitted{Target: next.GetTarget()}), true, nil
}

// cancelInto cancels a task that is to go to a queue. Its content must be there for that.
func (n *Node) cancelInto(ctx context.Context, id proto.TaskID, rec *proto.Record, queue string) error {
	_, done, err := n.again(id, rec)
	if err != nil {
		return err
	}
	done()
	_, err = n.outbox.CancelInto(ctx, id, queue, "a person puts it into queue "+queue)
	if errors.Is(err, outbox.ErrEnded) {
		return fmt.Errorf("%w: task %s has ended meanwhile", ErrRefused, id)
	}
	if err != nil {
		return err
	}
	n.moves.set(id, queue)
	if err := n.note(ctx, "task.cancel", id.String()); err != nil {
		return err
	}
	return n.cfg.Fail(PointMoving)
}

// finishMove makes the successor of a task that has ended, once: of two who do that at
// the same time the second finds it.
func (n *Node) finishMove(ctx context.Context, id proto.TaskID, queue string) (Submitted, error) {
	n.redriving.Lock()
	defer n.redriving.Unlock()
	rec, err := n.outbox.Get(id)
	if err != nil {
		return Submitted{}, err
	}
	if as, made, err := n.movedAs(rec, queue); made || err != nil {
		return as, err
	}
	goes, err := n.outbox.MovesTo(id)
	if err != nil {
		return Submitted{}, err
	}
	if rec.GetState() != proto.Cancelled || rec.GetRedrivenAs() != "" || goes != queue {
		err := n.outbox.ForgetMove(ctx, id)
		n.moves.done(id)
		return Submitted{}, errors.Join(fmt.Errorf("%w: task %s ended as %s meanwhile", ErrRefused, id, rec.GetState().Name()), err)
	}
	as, there, err := n.outbox.RedrivenAs(id) // and the process died then
	s := Submitted{}
	switch {
	case err != nil:
		return s, err
	case there:
		s = n.known(as, s)
	default:
		if s, as, err = n.makeInQueue(ctx, id, rec, queue); err != nil {
			return s, fmt.Errorf("task %s is cancelled, and could not be put into queue %s; that is tried again: %w", id, queue, err)
		}
	}
	if err := n.outbox.MarkRedriven(ctx, id, as); err != nil {
		return s, fmt.Errorf("the task was submitted as %s, but the old one could not be marked: %w", as, err)
	}
	n.moves.done(id)
	return s, n.note(ctx, "task.set", id.String()+" as "+s.ID+" in "+queuePrefix+queue)
}

// makeInQueue submits what a cancelled task asked for to a queue. The idempotency key
// goes on to mean the request that it came with.
func (n *Node) makeInQueue(ctx context.Context, id proto.TaskID, rec *proto.Record, queue string) (s Submitted, as proto.TaskID, err error) {
	r, done, err := n.again(id, rec)
	if err != nil {
		return s, as, err
	}
	defer done()
	r.Target, r.digest = queuePrefix+queue, rec.GetRequestDigest()
	if s, err = n.Submit(ctx, r); err != nil {
		return s, as, err
	}
	if as, err = proto.ParseTaskID(s.ID); err != nil {
		return s, as, err
	}
	return s, as, n.cfg.Fail(PointRedriven)
}

// finishMoves makes the successors of the tasks that have ended since they were
// cancelled to go to another queue.
func (n *Node) finishMoves(ctx context.Context) {
	for id, queue := range n.moves.all() {
		rec, err := n.outbox.Get(id)
		switch {
		case errors.Is(err, outbox.ErrNotFound):
			n.log.Error("a task that was to go to another queue is not kept any more", "task", id.String(), "queue", queue)
			if err := n.outbox.ForgetMove(ctx, id); err == nil {
				n.moves.done(id)
			}
			continue
		case err == nil && !rec.GetState().Terminal():
			continue
		}
		if _, err = n.finishMove(ctx, id, queue); err != nil && ctx.Err() == nil && n.moves.news(id, err.Error()) {
			n.log.Warn("a task has not gone to its new queue yet", "task", id.String(), "queue", queue, "err", err)
		}
	}
}

// loadMoves reads what an earlier start of the node has not finished.
func (n *Node) loadMoves() (err error) {
	n.moves.told = map[proto.TaskID]string{}
	n.moves.to, err = n.outbox.Moves()
	return err
}
