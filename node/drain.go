package node

import (
	"context"
	"fmt"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/wire"
)

// Stop stops this node as a signal does, but not before the end of the command is in the
// audit log, which the stop closes. With handoff it first drains and waits,
// within ctx, until its queues have new homes: a node that cannot hand them over does
// not stop.
func (n *Node) Stop(ctx context.Context, handoff bool) error {
	if n.cfg.Stop == nil {
		return fmt.Errorf("%w: this node cannot be stopped by command: stop its process", wire.ErrRefused)
	}
	if handoff {
		if err := n.Queues.HandOffAll(ctx); err != nil {
			return err
		}
	}
	if err := n.Audit.Record(ctx, "node.stop", fmt.Sprintf("handoff %v", handoff)); err != nil {
		return err
	}
	audit.Lastly(ctx, n.cfg.Stop)
	return nil
}
