package transporttest

import (
	"bytes"
	"cmp"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/marcopolo/simnet"

	"github.com/balefire/balefire/transport"
)

// sockets makes the simulated wire the socket of node i.
func (n *Network) sockets(i int) transport.Sockets {
	n.mu.Lock()
	defer n.mu.Unlock()
	own := source{n.addrOf(i).IP}
	return func(drops func([]byte, net.Addr, time.Time) bool) []quicreuse.Option {
		return []quicreuse.Option{
			quicreuse.OverrideSourceIPSelector(func() (quicreuse.SourceIPSelector, error) { return own, nil }),
			quicreuse.OverrideListenUDP(func(_ string, a *net.UDPAddr) (net.PacketConn, error) { return n.newSocket(i, a, drops), nil }),
		}
	}
}

// SendAll is the drops of a socket that sends all packets.
func SendAll([]byte, net.Addr, time.Time) bool { return false }

// newSocket connects node i to the wire at address a.
func (n *Network) newSocket(i int, a *net.UDPAddr, drops func([]byte, net.Addr, time.Time) bool) net.PacketConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := &wire{SimConn: n.endpoint(i, a), net: n, node: i, drops: drops}
	w.now.Store(w.SimConn)
	n.wires[i] = w
	own := n.nodeLinks[i]
	if n.link.MTU > 0 || own.In.MTU > 0 || own.Out.MTU > 0 {
		return pmtuWire{w}
	}
	return w
}

// endpoint returns a new end of the wire of node i. The caller holds mu.
func (n *Network) endpoint(i int, a *net.UDPAddr) *simnet.SimConn {
	rate := func(d Direction) simnet.LinkSettings {
		if d.Queue > 0 {
			d.Mbps = 0 // its queue has the rate
		}
		return simnet.LinkSettings{BitsPerSecond: int(cmp.Or(d.Mbps, n.link.Mbps, 1000) * simnet.Mibps)}
	}
	own := n.nodeLinks[i]
	return n.sim.NewEndpoint(a, simnet.NodeBiDiLinkSettings{Downlink: rate(own.In), Uplink: rate(own.Out)})
}

// A pmtuWire is a wire on which QUIC performs path MTU discovery: it does so where it can
// set a socket option, here that of an unused socket.
type pmtuWire struct{ *wire }

var idle = sync.OnceValues(func() (*net.UDPConn, error) { return net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}) })

func (pmtuWire) SyscallConn() (syscall.RawConn, error) {
	s, err := idle()
	if err != nil {
		return nil, err
	}
	return s.SyscallConn()
}

// A wire is one node's socket.
type wire struct {
	*simnet.SimConn                                // at its first address
	now             atomic.Pointer[simnet.SimConn] // at its present address

	net   *Network
	node  int
	drops func(b []byte, to net.Addr, now time.Time) bool // of the node itself
}

// WriteTo passes p to the network, which may drop or hold it.
func (w *wire) WriteTo(p []byte, to net.Addr) (int, error) {
	if w.drops(p, to, time.Now()) || w.net.drops(w.node, to, len(p)) {
		return len(p), nil
	}
	if w.keeps(p, to) {
		return len(p), nil
	}
	return w.send(p, to)
}

// send sends p when the queues of the two links have sent what is before it.
func (w *wire) send(p []byte, to net.Addr) (int, error) {
	wait, ok := w.net.enqueue(w.node, to, len(p))
	if !ok {
		return len(p), nil
	}
	at := w.now.Load()
	if wait == 0 {
		return at.WriteTo(p, inside(to))
	}
	later := bytes.Clone(p)
	time.AfterFunc(wait, func() { _, _ = at.WriteTo(later, inside(to)) })
	return len(p), nil
}

// ReadFrom returns the next packet, and its sender as this node sees it.
func (w *wire) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		at := w.now.Load()
		n, from, err := at.ReadFrom(p)
		if err != nil && at != w.now.Load() {
			continue // the node has another address now
		}
		if err != nil {
			return n, from, err
		}
		return n, w.net.seenBy(w.node, from), nil
	}
}

// SetReadDeadline sets the deadline at the present address.
func (w *wire) SetReadDeadline(t time.Time) error { return w.now.Load().SetReadDeadline(t) }

// Close closes the socket.
func (w *wire) Close() error { return errors.Join(w.now.Load().Close(), w.SimConn.Close()) }

// Readdress gives node i, which is not behind a symmetric NAT, another address: nothing that
// is sent to the old one arrives, and NATs, its own included, know nothing of the new one.
// What it has sent before still arrives, from the old address.
func (n *Network) Readdress(i int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nets[i]++
	for _, nat := range n.nats {
		delete(nat.contacted, i)
	}
	if nat := n.nats[i]; nat != nil {
		clear(nat.contacted)
	}
	if w := n.wires[i]; w != nil {
		old := w.now.Swap(n.endpoint(i, n.addrOf(i)))
		_ = old.SetReadDeadline(time.Unix(0, 0)) // it never fails; ReadFrom returns
	}
}

// keeps reports whether the network holds p.
func (w *wire) keeps(p []byte, to net.Addr) bool {
	later := bytes.Clone(p)
	return w.net.hold(w.node, to, func() { _, _ = w.send(later, to) }) // a closed receiver gets nothing
}

// source is a simulated node's only address.
type source struct{ ip net.IP }

// PreferredSourceIPForDestination returns that address.
func (s source) PreferredSourceIPForDestination(*net.UDPAddr) (net.IP, error) { return s.ip, nil }
