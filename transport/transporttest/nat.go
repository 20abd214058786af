package transporttest

// A Kind of NAT, by what it does to hole punching.
type Kind int

// Kinds of NAT.
const (
	Open      Kind = iota // none
	Cone                  // lets in who was written to before
	Symmetric             // lets in nobody but open nodes that were written to before: the others aim at a port that is not theirs
)

// A wall is the NAT in front of a node. Addresses are not rewritten: what
// matters here is who gets through.
type wall struct {
	kind    Kind
	written map[int]bool // whom the node wrote to
}

// Behind puts a node behind a NAT of this kind, which has forgotten everything.
func (n *Network) Behind(kind Kind, nodes ...int) {
	n.change(func() {
		for _, i := range nodes {
			delete(n.walls, i)
			if kind != Open {
				n.walls[i] = &wall{kind, map[int]bool{}}
			}
		}
	})
}

// passes reports whether the NATs between two nodes let a packet through, and
// lets them remember it. The caller holds mu.
func (n *Network) passes(from, to int) bool {
	out, in := n.walls[from], n.walls[to]
	if out != nil {
		out.written[to] = true
	}
	switch {
	case in == nil:
		return true
	case out != nil && (out.kind == Symmetric || in.kind == Symmetric):
		return false
	}
	return in.written[from]
}
