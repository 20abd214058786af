package queue

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
func (qs *Queues) Drain(ctx context.Context, on bool) (wire.Drained, error) {
	if qs.drained.Load() != on {
		if err := qs.cfg.Audit(ctx, "node.drain", fmt.Sprint(on)); err != nil {
			return wire.Drained{}, err
		}
		qs.drained.Store(on)
		qs.gossip.Describe()
		qs.wake()
	}
	d := wire.Drained{On: on}
	var err error
	if on {
		qs.Stop()
		if _, d.Kept, err = qs.moveHomes(ctx); err != nil {
			return d, err
		}
	}
	if d.Going, err = qs.leaving(ctx); err != nil {
		return d, err
	}
	d.Running, _, err = qs.Driver.Unfinished(ctx)
	return d, err
}

// leaving counts what this node still has to hand over to other homes: tasks,
// schedules, and queues whose new homes do not know of them yet.
func (qs *Queues) leaving(ctx context.Context) (count int, err error) {
	for name, s := range qs.Driver.QueueStates() {
		if qs.Here(s) {
			continue
		}
		v, err := qs.Driver.Queue(ctx, name)
		if err != nil {
			return count, err
		}
		count += v.Waiting + v.Owned + v.Going
		if v.Unannounced {
			count++
		}
	}
	going, err := qs.cfg.Leaving(ctx)
	return count + going, err
}

// handOffPoll is the interval between two checks of what is left to hand over.
const handOffPoll = 50 * time.Millisecond

// HandOffAll drains this node and returns, within ctx, once its queues have new homes. It
// fails if there is none, and the node works on.
func (qs *Queues) HandOffAll(ctx context.Context) error {
	drained := qs.drained.Load()
	tick := time.NewTicker(handOffPoll)
	defer tick.Stop()
	for {
		d, err := qs.Drain(ctx, true)
		switch {
		case err != nil:
			return err
		case len(d.Kept) > 0:
			if !drained {
				if _, err := qs.Drain(ctx, false); err != nil {
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
