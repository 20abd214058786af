package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
)

// SetClass gives a task of a queue whose home is here another class. It counts at
// once, while the task waits.
func (n *Node) SetClass(ctx context.Context, ref, class string) (Task, error) {
	c, err := proto.ParseClass(class)
	if err != nil || c == proto.Class_CLASS_UNSPECIFIED {
		return Task{}, fmt.Errorf("%w: class %.20q: it is critical, high, normal or low", ErrInvalid, class)
	}
	id, _, rec, err := n.find(ref)
	if err != nil {
		return Task{}, err
	}
	known, err := n.queues.room.Reclass(ctx, id, c)
	switch queue, queued := strings.CutPrefix(rec.GetTarget(), queuePrefix); {
	case err != nil:
		return Task{}, fmt.Errorf("set the class of %s: %w", id, err)
	case known:
	case rec.GetState().Terminal():
		return Task{}, fmt.Errorf("%w: task %s has ended as %s", ErrRefused, id, rec.GetState().Name())
	case queued:
		home, err := n.queues.homeOf(queue)
		if err != nil {
			return Task{}, err
		}
		name, _ := n.peerNames(home[:])
		return Task{}, fmt.Errorf("%w: task %s waits in queue %s, whose home is %s: set its class there", ErrRefused, id, queue, name)
	default:
		return Task{}, fmt.Errorf("%w: task %s is not in a shared queue: cancel it and send it again with the other class", ErrRefused, id)
	}
	if err := n.note(ctx, "task.set", id.String()+" class "+c.Name()); err != nil {
		return Task{}, err
	}
	return n.Task(ctx, id.String())
}

// moveWait is how long the end of a task is awaited that goes to another queue.
const moveWait = 30 * time.Second

// MoveTask takes a task of this node out of where it waits and puts it into a queue,
// as a new task: its origin signed it for the one, and signs it for the other. One
// that runs is stopped first; one that ends otherwise meanwhile stays as it is.
func (n *Node) MoveTask(ctx context.Context, ref, queue string) (Submitted, error) {
	id, role, rec, err := n.find(ref)
	if err != nil {
		return Submitted{}, err
	}
	if _, err := n.queues.homeOf(queue); err != nil {
		return Submitted{}, err
	}
	switch target := queuePrefix + queue; {
	case role == RoleOwner:
		return Submitted{}, fmt.Errorf("%w: a task is put into another queue where it was made: ask %s", ErrRefused, n.view(id, role, rec).Peer)
	case rec.GetState().Terminal():
		return Submitted{}, fmt.Errorf("%w: task %s has ended as %s: only one that waits can go to another queue", ErrRefused, id, rec.GetState().Name())
	case rec.GetMode() == proto.Mode_MODE_AT_MOST_ONCE:
		return Submitted{}, fmt.Errorf("%w: task %s may start only once, and may have: cancel it, see what it did, and send it anew", ErrRefused, id)
	case rec.GetTarget() == target:
		return Submitted{}, fmt.Errorf("%w: task %s is in queue %s already", ErrRefused, id, queue)
	}
	r, done, err := n.again(id, rec)
	if err != nil {
		return Submitted{}, err
	}
	defer done()
	r.Target = queuePrefix + queue
	if _, err := n.Cancel(ctx, id.String(), false, "a person puts it into queue "+queue); err != nil {
		return Submitted{}, err
	}
	wait, cancel := context.WithTimeout(ctx, moveWait)
	defer cancel()
	if rec, err = n.outbox.Wait(wait, id); err != nil {
		return Submitted{}, fmt.Errorf("%w: task %s was asked to stop and has not yet: when it is CANCELLED send it to queue:%s anew: %w", ErrRefused, id, queue, err)
	}
	if rec.GetState() != proto.TaskState_TASK_STATE_CANCELLED {
		return Submitted{}, fmt.Errorf("%w: task %s ended as %s meanwhile", ErrRefused, id, rec.GetState().Name())
	}
	return n.resubmit(ctx, id, r)
}

// resubmit makes r the successor of a cancelled task. Of two who ask at once one
// comes too late.
func (n *Node) resubmit(ctx context.Context, id proto.TaskID, r Request) (Submitted, error) {
	n.redriving.Lock()
	defer n.redriving.Unlock()
	rec, err := n.outbox.Get(id)
	if err != nil {
		return Submitted{}, err
	}
	if as := rec.GetRedrivenAs(); as != "" {
		return Submitted{}, fmt.Errorf("%w: task %s was redriven as %s", ErrRefused, id, as)
	}
	s, err := n.Submit(ctx, r)
	if err != nil {
		return s, fmt.Errorf("task %s is cancelled, but could not be put into its new queue: %w", id, err)
	}
	as, err := proto.ParseTaskID(s.ID)
	if err != nil {
		return s, err
	}
	if err := n.outbox.MarkRedriven(ctx, id, as); err != nil {
		return s, fmt.Errorf("the task was submitted as %s, but the old one could not be marked: %w", as, err)
	}
	return s, n.note(ctx, "task.set", id.String()+" as "+s.ID+" in "+r.Target)
}

// Progress notes that the handler of a granted task made some. From then on it must
// say so again before the stall limit is over: else it is stopped, and its lease is
// not renewed.
func (n *Node) Progress(ctx context.Context, task string) error {
	id, err := proto.ParseTaskID(task)
	if err != nil {
		return fmt.Errorf("%w: %.60q is no task id: a program finds its own in BALEFIRE_TASK_ID", ErrInvalid, task)
	}
	known, err := n.queues.room.Progress(ctx, id)
	if err == nil && !known {
		err = fmt.Errorf("%w: no handler works here on task %s of a shared queue", ErrNotFound, id)
	}
	return err
}

// UnblockLane lets the tasks of one ordering key go on that stand still because the
// one before them died.
func (n *Node) UnblockLane(ctx context.Context, name, key string) (Queue, error) {
	q, err := n.Queue(ctx, name)
	if err != nil {
		return q, err
	}
	if !q.Here {
		return q, fmt.Errorf("%w: the home of queue %s is %s: unblock it there", ErrRefused, name, q.Home)
	}
	stood, err := n.queues.room.Unblock(ctx, name, key)
	switch {
	case err != nil:
		return q, fmt.Errorf("unblock %.60q of queue %s: %w", key, name, err)
	case !stood:
		return q, fmt.Errorf("%w: no tasks of queue %s with the ordering key %.60q stand still", ErrNotFound, name, key)
	}
	if err := n.note(ctx, "queue.unblock", name+" "+key); err != nil {
		return q, err
	}
	return n.Queue(ctx, name)
}
