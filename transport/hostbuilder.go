package transport

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"

	coreconnmgr "github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	blankhost "github.com/libp2p/go-libp2p/p2p/host/blank"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/observedaddrs"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/autonatv2"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"
)

// A hostBuilder holds the parts of a libp2p host. libp2p's own constructor would link
// every transport of libp2p, WebRTC alone with 76 packages; the construction order here
// is the same.
type hostBuilder struct {
	key          crypto.PrivKey
	listen       []ma.Multiaddr
	gater        *gater
	limits       network.ResourceManager
	conns        coreconnmgr.ConnManager
	ranker       network.DialRanker
	addrs        basichost.AddrsFactory
	nat          func(network.Network) basichost.NATManager // default: no port mapping
	sockets      Sockets                                    // see Config.Sockets
	metrics      prometheus.Registerer                      // default: none
	filterStream func(network.Stream) network.Stream        // see preHelloFilter; default: all streams are served
	awaitHello   func(context.Context, peer.ID) error       // waits for the hello; default: returns at once
	thinner      *thinner                                   // of the sockets of QUIC
	circuits     circuitNote                                // default: none
	names        *nameResolver                              // default: that of libp2p
}

// build builds the host, starts it and listens.
func (p hostBuilder) build() (_ host.Host, err error) {
	bus := eventbus.NewBus()
	opts := []swarm.Option{swarm.WithDialRanker(p.ranker)}
	if p.metrics != nil {
		rcmgr.MustRegisterWith(p.metrics)
		bus = eventbus.NewBus(eventbus.WithMetricsTracer(eventbus.NewMetricsTracer(eventbus.WithRegisterer(p.metrics))))
		opts = append(opts, swarm.WithMetricsTracer(swarm.NewMetricsTracer(swarm.WithRegisterer(p.metrics))))
	}
	b, err := p.netStack(p.key, bus, p.metrics, opts...)
	if err != nil {
		return nil, err
	}
	h := &fullHost{stack: b, awaitHello: p.awaitHello}
	defer func() {
		if err != nil && h.BasicHost == nil {
			b.close()
			p.conns.Close()
			p.limits.Close()
		}
	}()
	set := &basichost.HostOpts{
		EventBus: hostBus{bus}, ConnManager: p.conns, AddrsFactory: p.addrs, NATManager: p.nat,
		EnablePing: true, UserAgent: "balefire",
		EnableMetrics: p.metrics != nil, PrometheusRegisterer: p.metrics,
	}
	if p.sockets == nil {
		if h.observed, err = observedaddrs.NewManager(bus, b.swarm); err != nil {
			return nil, err
		}
		set.ObservedAddrsManager = h.observed
		if set.AutoNATv2, err = p.autonat(); err != nil {
			return nil, err
		}
	}
	net := &preHelloFilter{Swarm: b.swarm, filterStream: p.filterStream}
	if h.BasicHost, err = basichost.NewHost(net, set); err != nil {
		return nil, err
	}
	err = errors.Join(addCircuitDialer(h, b, p.circuits), b.swarm.Listen(p.listen...))
	if h.observed != nil {
		h.observed.Start(b.swarm)
	}
	net.starting = true
	h.Start() // a host that was not started cannot be closed
	net.starting = false
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// autonat lets members check whether they are reachable, and asks them the same.
func (p hostBuilder) autonat() (*autonatv2.AutoNAT, error) {
	d, err := p.newDialBackHost()
	if err != nil {
		return nil, err
	}
	var m autonatv2.MetricsTracer
	if p.metrics != nil {
		m = autonatv2.NewMetricsTracer(p.metrics)
	}
	a, err := autonatv2.New(d, autonatv2.WithMetricsTracer(m))
	if err != nil {
		d.Close()
		return nil, err
	}
	return a, nil
}

// newDialBackHost returns the host that AutoNAT dials back from: it has its own identity
// and sockets.
func (p hostBuilder) newDialBackHost() (host.Host, error) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, err
	}
	bus := eventbus.NewBus()
	b, err := p.netStack(key, bus, nil, swarm.WithDialRanker(swarm.NoDelayDialRanker), swarm.WithReadOnlyBlackHoleDetector())
	if err != nil {
		return nil, err
	}
	return &dialBackHost{BlankHost: blankhost.NewBlankHost(b.swarm, blankhost.WithEventBus(bus)), stack: b}, nil
}

// A fullHost is a host together with its network stack.
type fullHost struct {
	*basichost.BasicHost
	stack      netStack
	observed   *observedaddrs.Manager // nil on a simulated network
	awaitHello func(context.Context, peer.ID) error
	closeOnce  sync.Once
}

// Connect makes a connection if there is none. It does not identify the peer: that
// happens after the hello.
func (h *fullHost) Connect(ctx context.Context, info peer.AddrInfo) error {
	h.Peerstore().AddAddrs(info.ID, info.Addrs, peerstore.TempAddrTTL)
	direct, _ := network.GetForceDirectDial(ctx)
	if !direct && h.Network().Connectedness(info.ID) == network.Connected {
		return nil
	}
	_, err := h.Network().DialPeer(ctx, info.ID)
	return err
}

// NewStream opens a stream after the hello.
func (h *fullHost) NewStream(ctx context.Context, id peer.ID, protocols ...protocol.ID) (network.Stream, error) {
	if stay, _ := network.GetNoDial(ctx); !stay {
		if err := h.Connect(ctx, peer.AddrInfo{ID: id}); err != nil {
			return nil, err
		}
	}
	if h.awaitHello != nil {
		if err := h.awaitHello(ctx, id); err != nil {
			return nil, err
		}
	}
	return h.BasicHost.NewStream(network.WithNoDial(ctx, "it is connected"), id, protocols...)
}

// Close closes the host and waits for it: the network first, so that nothing waits for a
// peer. A second call does nothing.
func (h *fullHost) Close() (err error) {
	h.closeOnce.Do(func() {
		if h.observed != nil {
			h.observed.Close()
		}
		err = errors.Join(h.stack.swarm.Close(), h.stack.quic.Close(), h.BasicHost.Close())
	})
	return err
}

// A dialBackHost is a host that only dials.
type dialBackHost struct {
	*blankhost.BlankHost
	stack     netStack
	closeOnce sync.Once
}

// Close closes the host. A second call does nothing.
func (h *dialBackHost) Close() (err error) {
	h.closeOnce.Do(func() { err = h.stack.close() })
	return err
}
