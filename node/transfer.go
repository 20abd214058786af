package node

import (
	"cmp"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// transfers lists the current transfers of the bodies of a task.
func (n *Node) transfers(id proto.TaskID) (out []wire.Transfer) {
	if n.net == nil {
		return nil
	}
	for _, f := range n.net.Flows() {
		if f.Task == id {
			out = append(out, n.transferView(f))
		}
	}
	slices.SortFunc(out, func(a, b wire.Transfer) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Peer, b.Peer)) })
	return out
}

func (n *Node) transferView(f transport.Flow) wire.Transfer {
	x := wire.Transfer{What: "body", Direction: "in", Bytes: f.Done, Size: f.Size, Rate: f.Rate, Left: f.Left().Seconds()}
	x.Peer, _ = n.peerNameID(f.Peer[:])
	if f.Result {
		x.What = "result"
	}
	if f.Out {
		x.Direction = "out"
	}
	return x
}
