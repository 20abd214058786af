package queue

import (
	"context"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// SetClass changes the class of a task of a queue whose home is this node. It takes
// effect at once while the task waits.
func (qs *Queues) SetClass(ctx context.Context, ref, class string) (wire.Task, error) {
	c, err := proto.ParseClass(class)
	if err != nil || c == proto.ClassUnspecified {
		return wire.Task{}, fmt.Errorf("%w: class %.20q: must be critical, high, normal or low", wire.ErrInvalid, class)
	}
	id, _, rec, err := qs.parts.Tasks.Find(ctx, ref)
	if err != nil {
		return wire.Task{}, err
	}
	known, err := qs.Driver.SetClass(ctx, id, c)
	switch queue, queued := proto.QueueOf(rec.GetTarget()); {
	case err != nil:
		return wire.Task{}, fmt.Errorf("set the class of %s: %w", id, err)
	case known:
	case rec.GetState().Terminal():
		return wire.Task{}, fmt.Errorf("%w: task %s has ended as %s", wire.ErrRefused, id, rec.GetState().Name())
	case queued:
		home, err := qs.HomeOf(queue)
		if err != nil {
			return wire.Task{}, err
		}
		name, _ := qs.parts.Book.Identify(home[:])
		return wire.Task{}, fmt.Errorf("%w: task %s waits in queue %s, whose home is %s: set its class there", wire.ErrRefused, id, queue, name)
	default:
		return wire.Task{}, fmt.Errorf("%w: task %s is not in a shared queue: cancel it and send it again with the other class", wire.ErrRefused, id)
	}
	if err := qs.cfg.Audit(ctx, "task.set", id.String()+" class "+c.Name()); err != nil {
		return wire.Task{}, err
	}
	return qs.parts.Tasks.Task(ctx, id.String())
}

// Progress records that the handler of a granted task made progress. From then on the
// handler must report progress again within the stall limit; otherwise it is stopped and
// its lease is not renewed.
func (qs *Queues) Progress(ctx context.Context, task string) error {
	id, err := proto.ParseTaskID(task)
	if err != nil {
		return fmt.Errorf("%w: %.60q is not a task id: a program gets its own in BALEFIRE_TASK_ID", wire.ErrInvalid, task)
	}
	known, err := qs.Driver.Progress(ctx, id)
	if err == nil && !known {
		err = fmt.Errorf("%w: no handler on this node runs task %s of a shared queue", wire.ErrNotFound, id)
	}
	return err
}

// UnblockLane releases the tasks of one ordering key that are blocked because an earlier
// one became a dead letter.
func (qs *Queues) UnblockLane(ctx context.Context, name, key string) (wire.Queue, error) {
	q, err := qs.Get(ctx, name)
	if err != nil {
		return q, err
	}
	if !q.Here {
		return q, fmt.Errorf("%w: the home of queue %s is %s: unblock it there", wire.ErrRefused, name, q.Home)
	}
	blocked, err := qs.Driver.Unblock(ctx, name, key)
	switch {
	case err != nil:
		return q, fmt.Errorf("unblock %.60q of queue %s: %w", key, name, err)
	case !blocked:
		return q, fmt.Errorf("%w: no tasks of queue %s with the ordering key %.60q are blocked", wire.ErrNotFound, name, key)
	}
	if err := qs.cfg.Audit(ctx, "queue.unblock", name+" "+key); err != nil {
		return q, err
	}
	return qs.Get(ctx, name)
}
