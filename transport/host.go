package transport

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
)

// hostHooks are the functions of a transport that its host calls.
type hostHooks struct {
	score        func(proto.PeerID) float64          // of a relay
	extraAddrs   func() []ma.Multiaddr               // further addresses of this node, unknown to libp2p
	correct      func([]ma.Multiaddr) []ma.Multiaddr // drops stale addresses, adds new ones
	router       *atomic.Pointer[portMap]            // receives the port map
	filterStream func(network.Stream) network.Stream
	awaitHello   func(context.Context, peer.ID) error
	thinner      *thinner
	circuits     circuitNote
	names        *nameResolver
}

// newHost returns the libp2p host. It listens at once, but the gater rejects all
// connections until Run.
func newHost(keys Keys, g *gater, r hostHooks, cfg Config) (host.Host, error) {
	key, err := crypto.UnmarshalEd25519PrivateKey(keys.PrivateKey())
	if err != nil {
		return nil, fmt.Errorf("node key: %w", err)
	}
	announce, err := parseAddrs(keys.Peer(), cfg.Announce)
	if err != nil {
		return nil, fmt.Errorf("announce: %w", err)
	}
	p := hostBuilder{key: key, gater: g, ranker: ranker(r.score), sockets: cfg.Sockets, filterStream: r.filterStream, awaitHello: r.awaitHello, thinner: r.thinner, circuits: r.circuits, names: r.names}
	if !cfg.OwnMetrics {
		p.metrics = cfg.Registerer
	}
	if p.listen, err = parseListen(cfg.Listen); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p.addrs = func(own []ma.Multiaddr) []ma.Multiaddr {
		return slices.Concat(announce, r.correct(slices.Concat(own, r.extraAddrs())))
	}
	if cfg.PortMap {
		p.nat = portMapper(r.router, cfg.Clock)
	}
	if p.limits, p.conns, err = bounds(); err != nil {
		return nil, err
	}
	h, err := p.build()
	if err != nil {
		return nil, describeListenError(cfg.Listen, err)
	}
	if missing := unbound(cfg.Listen, h.Network().ListenAddresses()); len(missing) > 0 {
		h.Close()
		return nil, fmt.Errorf("listen on %v: not possible; is another program using the port? (set other addresses with `net.listen` in the configuration)", missing)
	}
	return h, nil
}

func parseListen(addrs []string) (out []ma.Multiaddr, err error) {
	for _, s := range addrs {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// unbound returns the wanted addresses that are not among the bound ones; libp2p succeeds
// if it can listen on any. Missing IPv6 addresses are ignored, since some machines have
// no IPv6.
func unbound(wanted []string, bound []ma.Multiaddr) (missing []string) {
	for _, s := range wanted {
		w, err := ma.NewMultiaddr(s)
		if err != nil || isIPv6(w) {
			continue
		}
		if !slices.ContainsFunc(bound, func(b ma.Multiaddr) bool { return sameSocket(w, b) }) {
			missing = append(missing, s)
		}
	}
	return missing
}

// sameSocket reports whether b is w, or w with an assigned port if its port was 0.
func sameSocket(w, b ma.Multiaddr) bool {
	wn, werr := manet.ToNetAddr(bare(w))
	bn, berr := manet.ToNetAddr(bare(b))
	if werr != nil || berr != nil || wn.Network() != bn.Network() {
		return w.Equal(b)
	}
	wp, werr := netip.ParseAddrPort(wn.String())
	bp, berr := netip.ParseAddrPort(bn.String())
	return werr == nil && berr == nil && wp.Addr() == bp.Addr() && (wp.Port() == 0 || wp.Port() == bp.Port())
}

// bare returns the IP address and port of a; manet does not support QUIC.
func bare(a ma.Multiaddr) ma.Multiaddr {
	return a.Decapsulate(ma.StringCast("/quic-v1"))
}

func isIPv6(a ma.Multiaddr) bool { _, err := a.ValueForProtocol(ma.P_IP6); return err == nil }

func isTCP(a ma.Multiaddr) bool { _, err := a.ValueForProtocol(ma.P_TCP); return err == nil }

func isQUIC(a ma.Multiaddr) bool { _, err := a.ValueForProtocol(ma.P_QUIC_V1); return err == nil }

// A gater rejects peers that the gate blocks or the ledger bans, before a stream is
// opened. Admitted peers must still complete the hello.
type gater struct {
	mayConnect func(peer.ID) bool                         // false until Run
	mayDial    func(p proto.PeerID, at ma.Multiaddr) bool // whether p may be dialed there now
}

func (g *gater) InterceptPeerDial(p peer.ID) bool            { return g.mayConnect(p) }
func (g *gater) InterceptAccept(network.ConnMultiaddrs) bool { return true }
func (g *gater) InterceptAddrDial(id peer.ID, a ma.Multiaddr) bool {
	p, err := fromLibp2p(id)
	return err == nil && g.mayConnect(id) && g.mayDial(p, a)
}
func (g *gater) InterceptSecured(_ network.Direction, p peer.ID, _ network.ConnMultiaddrs) bool {
	return g.mayConnect(p)
}
func (g *gater) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }
