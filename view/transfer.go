package view

import (
	"cmp"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Transfers lists the current transfers of the bodies of a task.
func (v *Views) Transfers(id proto.TaskID) (out []wire.Transfer) {
	for _, f := range v.Net.Flows() {
		if f.Task == id {
			out = append(out, v.Transfer(f))
		}
	}
	slices.SortFunc(out, func(a, b wire.Transfer) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Peer, b.Peer)) })
	return out
}

// Transfer converts a flow of the transport.
func (v *Views) Transfer(f transport.Flow) wire.Transfer {
	x := wire.Transfer{What: "body", Direction: "in", Bytes: f.Done, Size: f.Size, Rate: f.Rate, Left: f.Left().Seconds(), Peer: v.Book.NameOf(f.Peer)}

	if f.Result {
		x.What = "result"
	}
	if f.Out {
		x.Direction = "out"
	}
	return x
}
