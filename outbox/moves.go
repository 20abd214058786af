package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// prefixMove is the prefix of the keys in the Dedup bucket that record which
// queue a canceled task moves to.
const prefixMove = 'q'

// moveKey returns the key that records which queue a task moves to once it is
// CANCELLED. The record exists from the commit of the cancellation until the task
// is marked redriven, so that no crash in between loses the task.
func moveKey(id []byte) []byte { return append([]byte{prefixMove}, id...) }

// CancelInto cancels a task as [Outbox.Cancel] does, and records in the same
// batch that a new task replaces it in a queue. Once the task has ended as
// CANCELLED the caller creates the new one from its stored content and then calls
// [Outbox.MarkRedriven].
func (o *Outbox) CancelInto(ctx context.Context, id proto.TaskID, queue, reason string) (proto.TaskState, error) {
	return o.cancel(ctx, id, false, reason, queue)
}

// MovesTo returns the queue that a task moves to, empty if none.
func (o *Outbox) MovesTo(id proto.TaskID) (queue string, err error) {
	b, err := o.store.Get(store.Dedup, moveKey(id[:]))
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read which queue task %s moves to: %w", id, err)
	}
	return string(b), nil
}

// Moves returns the tasks that move to another queue and whose successors are not
// known to exist, with their queues.
func (o *Outbox) Moves() (map[proto.TaskID]string, error) {
	all := map[proto.TaskID]string{}
	for p, err := range o.store.All(store.Dedup, []byte{prefixMove}, []byte{prefixMove + 1}) {
		if err != nil {
			return nil, fmt.Errorf("read which tasks move to another queue: %w", err)
		}
		if id, err := proto.TaskIDFrom(p.Key[1:]); err == nil {
			all[id] = string(p.Val)
		}
	}
	return all, nil
}

// ForgetMove deletes the record of a move that will not happen: the task ended
// otherwise.
func (o *Outbox) ForgetMove(ctx context.Context, id proto.TaskID) error {
	var b store.Batch
	b.Delete(store.Dedup, moveKey(id[:]))
	if err := o.store.Apply(context.WithoutCancel(ctx), &b); err != nil {
		return fmt.Errorf("forget the move of task %s: %w", id, err)
	}
	return nil
}
