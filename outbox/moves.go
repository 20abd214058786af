package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// prefixMove begins the keys of the Dedup bucket that say where cancelled tasks go.
const prefixMove = 'q'

// moveKey is where it is kept which queue a task goes to once it is CANCELLED: from the
// commit of the cancellation to that of the mark on it, so that no crash in between
// loses the task.
func moveKey(id []byte) []byte { return append([]byte{prefixMove}, id...) }

// CancelInto cancels a task as [Outbox.Cancel] does, and notes in the same batch that a
// new task takes its place in a queue. The caller makes that once the task has ended as
// CANCELLED, of the content that is kept for it, and then calls [Outbox.MarkRedriven].
func (o *Outbox) CancelInto(ctx context.Context, id proto.TaskID, queue, reason string) (proto.TaskState, error) {
	return o.cancel(ctx, id, false, reason, queue)
}

// MovesTo returns the queue that a task goes to, empty if it goes nowhere.
func (o *Outbox) MovesTo(id proto.TaskID) (queue string, err error) {
	b, err := o.store.Get(store.Dedup, moveKey(id[:]))
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read where task %s goes: %w", id, err)
	}
	return string(b), nil
}

// Moves returns the tasks that go to another queue and whose successors are not known to
// be made, with their queues.
func (o *Outbox) Moves() (map[proto.TaskID]string, error) {
	all := map[proto.TaskID]string{}
	for p, err := range o.store.All(store.Dedup, []byte{prefixMove}, []byte{prefixMove + 1}) {
		if err != nil {
			return nil, fmt.Errorf("read which tasks go to another queue: %w", err)
		}
		if id, err := proto.TaskIDFrom(p.Key[1:]); err == nil {
			all[id] = string(p.Val)
		}
	}
	return all, nil
}

// ForgetMove drops the note of a task that goes to no other queue any more: it ended
// otherwise.
func (o *Outbox) ForgetMove(ctx context.Context, id proto.TaskID) error {
	var b store.Batch
	b.Delete(store.Dedup, moveKey(id[:]))
	if err := o.store.Apply(context.WithoutCancel(ctx), &b); err != nil {
		return fmt.Errorf("forget where task %s goes: %w", id, err)
	}
	return nil
}
