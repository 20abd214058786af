package transport

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/gologshim"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	tls "github.com/libp2p/go-libp2p/p2p/security/tls"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/x/rate"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// SetLibp2pLog sends libp2p's own log lines to h. It works once in a process,
// before the first host is made.
func SetLibp2pLog(h slog.Handler) { gologshim.SetDefaultHandler(h) }

// newHost makes the libp2p host. It listens at once: the gate holds everybody
// off until Run.
func newHost(keys Keys, g *gater, cfg Config) (host.Host, error) {
	key, err := crypto.UnmarshalEd25519PrivateKey(keys.PrivateKey())
	if err != nil {
		return nil, fmt.Errorf("node key: %w", err)
	}
	announce, err := parseAddrs(keys.Peer(), cfg.Announce)
	if err != nil {
		return nil, fmt.Errorf("announce: %w", err)
	}
	limits, err := resources()
	if err != nil {
		return nil, err
	}
	conns, err := connmgr.NewConnManager(1024, 2048, connmgr.WithGracePeriod(time.Minute))
	if err != nil {
		return nil, err
	}
	opts := []libp2p.Option{
		libp2p.Identity(key), listen(cfg.Listen), libp2p.UserAgent("balefire"),
		libp2p.ResourceManager(limits), libp2p.ConnectionManager(conns), libp2p.ConnectionGater(g),
		libp2p.SwarmOpts(swarm.WithDialRanker(lanRanker)), libp2p.DisableRelay(),
		libp2p.UDPBlackHoleSuccessCounter(nil), libp2p.IPv6BlackHoleSuccessCounter(nil),
		libp2p.AddrsFactory(func(own []ma.Multiaddr) []ma.Multiaddr { return slices.Concat(announce, own) }),
	}
	if cfg.HostOptions != nil {
		opts = append(opts, cfg.HostOptions...)
	} else {
		opts = append(opts, libp2p.Transport(quic.NewTransport), libp2p.Transport(tcp.NewTCPTransport),
			libp2p.Security(tls.ID, tls.New), libp2p.Security(noise.ID, noise.New))
	}
	if cfg.Registerer != nil {
		opts = append(opts, libp2p.PrometheusRegisterer(cfg.Registerer))
	} else {
		opts = append(opts, libp2p.DisableMetrics())
	}
	h, err := libp2p.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("listen on %v: %w", cfg.Listen, err)
	}
	if missing := unbound(cfg.Listen, h.Network().ListenAddresses()); len(missing) > 0 {
		h.Close()
		return nil, fmt.Errorf("listen on %v: not possible; is another program using the port? (`net.listen` in the configuration names others)", missing)
	}
	return h, nil
}

// listen is libp2p's option for these addresses. It takes none for its defaults.
func listen(addrs []string) libp2p.Option {
	if len(addrs) == 0 {
		return libp2p.NoListenAddrs
	}
	return libp2p.ListenAddrStrings(addrs...)
}

// unbound returns the wanted addresses that are not among the bound ones. libp2p
// is content when one can be listened on. IPv6 may be missing: some machines
// have none.
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

// sameSocket reports whether b is w, or what became of w when its port was 0.
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

// bare returns the IP and port of a: manet knows no QUIC.
func bare(a ma.Multiaddr) ma.Multiaddr {
	return a.Decapsulate(ma.StringCast("/quic-v1"))
}

func isIPv6(a ma.Multiaddr) bool { _, err := a.ValueForProtocol(ma.P_IP6); return err == nil }

// resources lifts libp2p's limits per address: a whole office may stand behind
// one. What a peer costs is bounded by package admit and by our own windows.
func resources() (network.ResourceManager, error) {
	l := rcmgr.DefaultLimits
	libp2p.SetDefaultServiceLimits(&l)
	all := func(conns, streams int, memory int64) rcmgr.ResourceLimits {
		n, s := rcmgr.LimitVal(conns), rcmgr.LimitVal(streams)
		return rcmgr.ResourceLimits{
			Conns: n, ConnsInbound: n, ConnsOutbound: n, FD: n,
			Streams: s, StreamsInbound: s, StreamsOutbound: s, Memory: rcmgr.LimitVal64(memory),
		}
	}
	c := rcmgr.PartialLimitConfig{
		System:              all(4096, 65536, 1<<30),
		Transient:           all(1024, 4096, 256<<20),
		PeerDefault:         all(16, 1024, 256<<20),
		ProtocolPeerDefault: rcmgr.ResourceLimits{Streams: 256, StreamsInbound: 256, StreamsOutbound: 256, Memory: 128 << 20},
		ProtocolDefault:     rcmgr.ResourceLimits{Streams: 32768, StreamsInbound: 16384, StreamsOutbound: 16384, Memory: 512 << 20},
	}.Build(l.AutoScale())
	limit := rate.Limit{RPS: 20, Burst: 200}
	return rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(c),
		rcmgr.WithLimitPerSubnet(
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: 1024}},
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 56, ConnCount: 1024}}),
		rcmgr.WithConnRateLimiters(&rate.Limiter{
			NetworkPrefixLimits: []rate.PrefixLimit{
				{Prefix: netip.MustParsePrefix("127.0.0.0/8")}, {Prefix: netip.MustParsePrefix("::1/128")}},
			SubnetRateLimiter: rate.SubnetLimiter{
				IPv4SubnetLimits: []rate.SubnetLimit{{PrefixLength: 32, Limit: limit}},
				IPv6SubnetLimits: []rate.SubnetLimit{{PrefixLength: 56, Limit: limit}},
				GracePeriod:      time.Minute,
			},
		}))
}

// lanRanker dials TCP first on private addresses (a quarter of the CPU of QUIC)
// and leaves the rest to libp2p, which tries QUIC first.
func lanRanker(addrs []ma.Multiaddr) []network.AddrDelay {
	out := swarm.DefaultDialRanker(addrs)
	lan := func(d network.AddrDelay) bool { return isTCP(d.Addr) && manet.IsPrivateAddr(d.Addr) }
	if !slices.ContainsFunc(out, lan) {
		return out
	}
	for i := range out {
		if lan(out[i]) {
			out[i].Delay = 0
		} else {
			out[i].Delay += 100 * time.Millisecond
		}
	}
	return out
}

func isTCP(a ma.Multiaddr) bool { _, err := a.ValueForProtocol(ma.P_TCP); return err == nil }

// A gater keeps out whom the gate blocks or the ledger bans, before a stream is
// opened. Who passes it still has to say hello.
type gater struct {
	wanted func(peer.ID) bool // set by Run; until then nobody is
}

func (g *gater) InterceptPeerDial(p peer.ID) bool                 { return g.wanted(p) }
func (g *gater) InterceptAddrDial(p peer.ID, _ ma.Multiaddr) bool { return g.wanted(p) }
func (g *gater) InterceptAccept(network.ConnMultiaddrs) bool      { return true }
func (g *gater) InterceptSecured(_ network.Direction, p peer.ID, _ network.ConnMultiaddrs) bool {
	return g.wanted(p)
}
func (g *gater) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }
