package transporttest

// A Kind is a kind of NAT, by its effect on hole punching.
type Kind int

// Kinds of NAT.
const (
	Open      Kind = iota // none
	Cone                  // admits nodes that were contacted before
	Symmetric             // admits only open nodes that were contacted before: others use the wrong port
)

// A nat is the NAT in front of a node. Addresses are not rewritten: only reachability
// matters here.
type nat struct {
	kind      Kind
	contacted map[int]bool // nodes that the node has sent to
}

// Behind puts nodes behind a NAT of this kind, without any mappings.
func (n *Network) Behind(kind Kind, nodes ...int) {
	n.change(func() {
		for _, i := range nodes {
			delete(n.nats, i)
			if kind != Open {
				n.nats[i] = &nat{kind, map[int]bool{}}
			}
		}
	})
}

// natAllows reports whether the NATs between two nodes pass a packet, and updates their
// mappings. The caller holds mu.
func (n *Network) natAllows(from, to int) bool {
	out, in := n.nats[from], n.nats[to]
	if out != nil {
		out.contacted[to] = true
	}
	switch {
	case in == nil:
		return true
	case out != nil && (out.kind == Symmetric || in.kind == Symmetric):
		return false
	}
	return in.contacted[from]
}
