package node

import (
	"errors"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// reportFull reports that new work is refused from now on and why, or that it is
// accepted again. The store calls it once for each change.
func (n *Node) reportFull(why error) {
	if why == nil {
		n.log.Info("new work is accepted again: there is space on the disk and in memory")
		n.Events.Add(wire.EventStoreRecovered, proto.PeerID{}, nil)
		return
	}
	cause := "disk"
	if errors.Is(why, store.ErrNoMemory) {
		cause = "memory"
	}
	n.log.Warn("new work is refused: results, ends and deletes still work", "cause", cause)
	n.Events.Add(wire.EventStoreFull, proto.PeerID{}, map[string]string{"cause": cause})
}
