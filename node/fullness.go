package node

import (
	"errors"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// The events of a store that runs full.
const (
	eventFull      = "store.full"
	eventRecovered = "store.recovered"
)

// reportFull says that new work is refused from now on, and why, or that it is taken
// again. The store calls it once for each change.
func (n *Node) reportFull(why error) {
	if why == nil {
		const text = "new work is taken again: there is room on the disk and in memory"
		n.log.Info(text)
		n.addEvent(eventRecovered, proto.PeerID{}, text, nil)
		return
	}
	text, cause := refusal(why), "disk"
	if errors.Is(why, store.ErrNoMemory) {
		cause = "memory"
	}
	n.log.Warn(text)
	n.addEvent(eventFull, proto.PeerID{}, text, map[string]string{"cause": cause})
}

// refusal says for a person why new work is refused, "" where it is not.
func refusal(why error) string {
	switch {
	case why == nil:
		return ""
	case errors.Is(why, store.ErrNoMemory):
		return "new work is refused: what is kept takes up as much memory as it may; let tasks end, give the node more (limits.memory_limit, or the limit of its container), or convert its store: balefire-node store migrate --to pebble"
	}
	return "new work is refused: the disk is below its reserve; free some space (balefire-node store stats says how much); results, ends and deletes go on"
}
