package node

import (
	"errors"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// Events of a store that is full.
const (
	eventFull      = "store.full"
	eventRecovered = "store.recovered"
)

// reportFull reports that new work is refused from now on and why, or that it is
// accepted again. The store calls it once for each change.
func (n *Node) reportFull(why error) {
	if why == nil {
		const text = "new work is accepted again: there is space on the disk and in memory"
		n.log.Info(text)
		n.Events.Add(eventRecovered, proto.PeerID{}, text, nil)
		return
	}
	text, cause := refusal(why), "disk"
	if errors.Is(why, store.ErrNoMemory) {
		cause = "memory"
	}
	n.log.Warn(text)
	n.Events.Add(eventFull, proto.PeerID{}, text, map[string]string{"cause": cause})
}

// refusal explains to a person why new work is refused; it is empty if it is not.
func refusal(why error) string {
	switch {
	case why == nil:
		return ""
	case errors.Is(why, store.ErrNoMemory):
		return "new work is refused: the store uses all the memory it may; let tasks end, give the node more (limits.memory_limit, or the limit of its container), or convert its store: balefire-node store migrate --to pebble"
	}
	return "new work is refused: the disk is below its reserve; free some space (balefire-node store stats shows how much); results, ends and deletes still work"
}
