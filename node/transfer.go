package node

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// A Transfer is a body or a result that is being sent or received.
type Transfer struct {
	What      string  `json:"what" enum:"body,result"`
	Direction string  `json:"direction" enum:"out,in"`
	Peer      string  `json:"peer"`
	Bytes     int64   `json:"bytes" doc:"durable at the receiver"`
	Size      int64   `json:"size" doc:"size of the sealed body"`
	Rate      float64 `json:"bytes_per_second" doc:"average of the last seconds; 0: not known yet, or stalled"`
	Left      float64 `json:"seconds_left,omitempty" doc:"estimate at the current rate"`
}

// transfers lists the current transfers of the bodies of a task.
func (n *Node) transfers(id proto.TaskID) (out []Transfer) {
	if n.net == nil {
		return nil
	}
	for _, f := range n.net.Flows() {
		if f.Task == id {
			out = append(out, n.transferView(f))
		}
	}
	slices.SortFunc(out, func(a, b Transfer) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Peer, b.Peer)) })
	return out
}

func (n *Node) transferView(f transport.Flow) Transfer {
	x := Transfer{What: "body", Direction: "in", Bytes: f.Done, Size: f.Size, Rate: f.Rate, Left: f.Left().Seconds()}
	x.Peer, _ = n.peerNameID(f.Peer[:])
	if f.Result {
		x.What = "result"
	}
	if f.Out {
		x.Direction = "out"
	}
	return x
}

// String describes the progress in one line.
func (x Transfer) String() string {
	way := "from"
	if x.Direction == "out" {
		way = "to"
	}
	text := fmt.Sprintf("its %s is being transferred %s %s: %s of %s", x.What, way, x.Peer, mib(x.Bytes), mib(x.Size))
	if x.Size > 0 {
		text += fmt.Sprintf(" (%d %%)", x.Bytes*100/x.Size)
	}
	if x.Rate > 0 {
		text += fmt.Sprintf(", %s/s", mib(int64(x.Rate)))
	}
	if x.Left > 0 {
		text += fmt.Sprintf(", %s left", time.Duration(x.Left*float64(time.Second)).Round(time.Second))
	}
	return text
}

// mib formats bytes with a suitable unit.
func mib(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}
