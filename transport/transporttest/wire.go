package transporttest

import (
	"cmp"
	"net"

	"github.com/libp2p/go-libp2p"
	lq "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/marcopolo/simnet"
	"github.com/quic-go/quic-go"
	"go.uber.org/fx"
)

// hostOptions makes QUIC the only transport and the simulated wire its socket.
func (n *Network) hostOptions(i int) []libp2p.Option {
	return []libp2p.Option{
		libp2p.Transport(lq.NewTransport),
		libp2p.QUICReuse(newConnManager,
			quicreuse.OverrideSourceIPSelector(func() (quicreuse.SourceIPSelector, error) { return source{n.place(i).IP}, nil }),
			quicreuse.OverrideListenUDP(func(_ string, a *net.UDPAddr) (net.PacketConn, error) { return n.plug(i, a), nil })),
		libp2p.DisableIdentifyAddressDiscovery(),
	}
}

// newConnManager is libp2p's own constructor for it, with its end.
func newConnManager(l fx.Lifecycle, reset quic.StatelessResetKey, token quic.TokenGeneratorKey, o ...quicreuse.Option) (*quicreuse.ConnManager, error) {
	m, err := quicreuse.NewConnManager(reset, token, o...)
	if err == nil {
		l.Append(fx.StopHook(m.Close))
	}
	return m, err
}

// plug connects node i to the wire at address a.
func (n *Network) plug(i int, a *net.UDPAddr) net.PacketConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	rate := simnet.LinkSettings{BitsPerSecond: cmp.Or(n.link.Mbps, 1000) * simnet.Mibps}
	return &wire{n.sim.NewEndpoint(a, simnet.NodeBiDiLinkSettings{Downlink: rate, Uplink: rate}), n, i}
}

// A wire is one node's socket.
type wire struct {
	*simnet.SimConn
	net  *Network
	node int
}

// WriteTo hands p to the network, which perhaps loses it.
func (w *wire) WriteTo(p []byte, to net.Addr) (int, error) {
	if w.net.drops(w.node, to) {
		return len(p), nil
	}
	return w.SimConn.WriteTo(p, to)
}

// source is the one address that a simulated node has.
type source struct{ ip net.IP }

// PreferredSourceIPForDestination returns that address.
func (s source) PreferredSourceIPForDestination(*net.UDPAddr) (net.IP, error) { return s.ip, nil }
