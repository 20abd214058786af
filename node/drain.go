package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/balefire/balefire/wire"
)

// Drain stops this node from taking new work, gives back what waits here for a slot
// and hands over the homes of its queues; with false it takes work again. Running
// tasks continue. Called again while the node drains, it reports the progress. A queue
// without a possible new home stays, and is handed over as soon as there is one.
func (n *Node) Drain(ctx context.Context, on bool) (wire.Drained, error) {
	if n.queues.drained.Swap(on) != on {
		n.gossip.Describe()
		n.queues.wake()
		if err := n.audit(ctx, "node.drain", fmt.Sprint(on)); err != nil {
			return wire.Drained{}, err
		}
	}
	d := wire.Drained{On: on}
	var err error
	if on {
		n.queues.stop()
		if _, d.Kept, err = n.queues.moveHomes(ctx); err != nil {
			return d, err
		}
	}
	if d.Going, err = n.queues.leaving(ctx); err != nil {
		return d, err
	}
	d.Running, _, err = n.queues.driver.Unfinished(ctx)
	return d, err
}

// leaving counts what this node still has to hand over to other homes: tasks,
// schedules, and queues whose new homes do not know of them yet.
func (q *queues) leaving(ctx context.Context) (count int, err error) {
	for name, s := range q.driver.QueueStates() {
		if q.here(s) {
			continue
		}
		v, err := q.driver.Queue(ctx, name)
		if err != nil {
			return count, err
		}
		count += v.Waiting + v.Owned + v.Going
		if v.Unannounced {
			count++
		}
	}
	going, err := q.node.schedules.Leaving(ctx)
	return count + going, err
}

// Stop stops this node as a signal does. With handoff it first drains and waits,
// within ctx, until its queues have new homes: a node that cannot hand them over does
// not stop.
func (n *Node) Stop(ctx context.Context, handoff bool) error {
	if n.cfg.Stop == nil {
		return fmt.Errorf("%w: this node cannot be stopped by command: stop its process", wire.ErrRefused)
	}
	if handoff {
		if err := n.handOffAll(ctx); err != nil {
			return err
		}
	}
	if err := n.audit(ctx, "node.stop", fmt.Sprintf("handoff %v", handoff)); err != nil {
		return err
	}
	n.cfg.Stop()
	return nil
}

// handOffPoll is the interval between two checks of what is left to hand over.
const handOffPoll = 50 * time.Millisecond

func (n *Node) handOffAll(ctx context.Context) error {
	drained := n.queues.drained.Load()
	tick := time.NewTicker(handOffPoll)
	defer tick.Stop()
	for {
		d, err := n.Drain(ctx, true)
		switch {
		case err != nil:
			return err
		case len(d.Kept) > 0:
			if !drained {
				if _, err := n.Drain(ctx, false); err != nil {
					return err
				}
			}
			return fmt.Errorf("%w: it is the home of %s, and %s: it keeps running; without the handoff it stops anyway, and its queues wait until it is back", wire.ErrRefused, strings.Join(d.Kept, ", "), noHome)
		case d.Going == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %d tasks and queues are still on their way to their new homes: it keeps running, drained; try again, or stop it without the handoff: they continue when it is back", wire.ErrRefused, d.Going)
		case <-tick.C:
		}
	}
}
