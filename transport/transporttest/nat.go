package transporttest

import (
	"net"
	"slices"
)

// A Kind is a kind of NAT, by its effect on hole punching.
type Kind int

// Kinds of NAT.
const (
	Open      Kind = iota // none
	FullCone              // one port for all; admits every node once any was contacted
	Cone                  // one port for all; admits nodes that were contacted before
	Symmetric             // another port for each contacted node, which admits only that one
)

// A nat is the NAT in front of a node. Only a symmetric one translates addresses: others
// would show all nodes the same one anyway.
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

// firstMapped is the port that a symmetric NAT maps for node 0; others follow it.
const firstMapped = 20_000

// seenBy returns the address a of a node as node to sees it.
func (n *Network) seenBy(to int, a net.Addr) net.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	u, ok := a.(*net.UDPAddr)
	if nat := n.nats[n.nodeAt(a)]; !ok || nat == nil || nat.kind != Symmetric {
		return a
	}
	out := withNet(u, outside)
	out.Port = firstMapped + to
	return out
}

// inside returns the address to which the NAT of a node translates a.
func inside(a net.Addr) net.Addr {
	u, ok := a.(*net.UDPAddr)
	if !ok || !isOutside(u) {
		return a
	}
	in := withNet(u, 0)
	in.Port = port
	return in
}

// outside is the second byte of the address of a symmetric NAT; that of the nodes is 0, and
// larger after a change of their address.
const outside = 1

// netOf returns the second byte of the address of node i.
func (n *Network) netOf(i int) byte {
	if c := n.nets[i]; c > 0 {
		return outside + c
	}
	return 0
}

func isOutside(a *net.UDPAddr) bool { ip := a.IP.To4(); return ip != nil && ip[1] == outside }

// withNet returns a with another second byte. The length of the address stays: simnet
// compares it.
func withNet(a *net.UDPAddr, second byte) *net.UDPAddr {
	ip := slices.Clone(a.IP)
	ip[len(ip)-3] = second
	return &net.UDPAddr{IP: ip, Port: a.Port}
}

// natAllows reports whether the NATs between two nodes pass a packet to this address, and
// updates their mappings. The caller holds mu.
func (n *Network) natAllows(from int, addr net.Addr) bool {
	to := n.nodeAt(addr)
	out, in := n.nats[from], n.nats[to]
	a, ok := addr.(*net.UDPAddr)
	if ok && !isOutside(a) && a.IP.To4() != nil && a.IP.To4()[1] != n.netOf(to) {
		return false // an address that the node has no more
	}
	if out != nil {
		out.contacted[to] = true
	}
	switch {
	case in == nil:
		return true
	case !ok || isOutside(a) != (in.kind == Symmetric):
		return false
	case in.kind == Symmetric && out != nil && out.kind == Symmetric:
		return false
	case in.kind == Symmetric:
		return a.Port == firstMapped+from && in.contacted[from]
	case in.kind == FullCone:
		return len(in.contacted) > 0
	case out != nil && out.kind == Symmetric:
		return false
	}
	return in.contacted[from]
}
