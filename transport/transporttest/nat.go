package transporttest

// A Kind of NAT, by what it does to hole punching.
type Kind int

// Kinds of NAT.
const (
	Open      Kind = iota // none
	Cone                  // lets in who was written to before
	Symmetric             // lets in nobody but open nodes that were written to before: the others aim at a port that is not theirs
)

// A nat is the NAT in front of a node. Addresses are not rewritten: what
// matters here is who gets through.
type nat struct {
	kind      Kind
	contacted map[int]bool // whom the node wrote to
}

// Behind puts a node behind a NAT of this kind, which has forgotten everything.
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

// natAllows reports whether the NATs between two nodes let a packet through, and
// lets them remember it. The caller holds mu.
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
