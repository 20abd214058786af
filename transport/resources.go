package transport

import (
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	circuitproto "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	libping "github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-libp2p/x/rate"
)

// bounds returns the host's resource manager and connection manager.
func bounds() (network.ResourceManager, *connmgr.BasicConnMgr, error) {
	limits, err := resources()
	if err != nil {
		return nil, nil, err
	}
	conns, err := connmgr.NewConnManager(1024, 2048, connmgr.WithGracePeriod(time.Minute))
	return limits, conns, err
}

// resources raises libp2p's limits per address, as a whole office may share one. Package
// admit and the windows bound what a peer costs.
func resources() (network.ResourceManager, error) {
	l := rcmgr.DefaultLimits
	serviceLimits(&l)
	all := func(conns, streams int, memory int64) rcmgr.ResourceLimits {
		n, s := rcmgr.LimitVal(conns), rcmgr.LimitVal(streams)
		return rcmgr.ResourceLimits{
			Conns: n, ConnsInbound: n, ConnsOutbound: n, FD: n,
			Streams: s, StreamsInbound: s, StreamsOutbound: s, Memory: rcmgr.LimitVal64(memory),
		}
	}
	circuits := rcmgr.ResourceLimits{Streams: 8192, StreamsInbound: 4096, StreamsOutbound: 4096, Memory: 256 << 20}
	c := rcmgr.PartialLimitConfig{
		System:              all(4096, 65536, 1<<30),
		Transient:           all(1024, 4096, 256<<20),
		PeerDefault:         all(16, 1024, 256<<20),
		ProtocolPeerDefault: rcmgr.ResourceLimits{Streams: 256, StreamsInbound: 256, StreamsOutbound: 256, Memory: 128 << 20},
		Service:             map[string]rcmgr.ResourceLimits{relayv2.ServiceName: {Streams: 16384, StreamsInbound: 8192, StreamsOutbound: 8192, Memory: 512 << 20}},
		ServicePeer:         map[string]rcmgr.ResourceLimits{relayv2.ServiceName: {Streams: 4 * maxCircuits, StreamsInbound: 2 * maxCircuits, StreamsOutbound: 2 * maxCircuits, Memory: 64 << 20}},
		Protocol:            map[protocol.ID]rcmgr.ResourceLimits{circuitproto.ProtoIDv2Hop: circuits, circuitproto.ProtoIDv2Stop: circuits},
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

// serviceLimits adds libp2p's own limits for the services of every host: identify, ping
// and circuits.
func serviceLimits(l *rcmgr.ScalingLimitConfig) {
	const ids, each = 64, 16 // streams in each direction, total and per peer
	all := rcmgr.BaseLimit{StreamsInbound: ids, StreamsOutbound: ids, Streams: 2 * ids, Memory: 4 << 20}
	more := rcmgr.BaseLimitIncrease{StreamsInbound: ids, StreamsOutbound: ids, Streams: 2 * ids, Memory: 4 << 20}
	one := rcmgr.BaseLimit{StreamsInbound: each, StreamsOutbound: each, Streams: 2 * each, Memory: 1 << 20}
	l.AddServiceLimit(identify.ServiceName, all, more)
	l.AddServicePeerLimit(identify.ServiceName, one, rcmgr.BaseLimitIncrease{})
	one.Memory = oneProtocol
	for _, id := range []protocol.ID{identify.ID, identify.IDPush} {
		l.AddProtocolLimit(id, all, more)
		l.AddProtocolPeerLimit(id, one, rcmgr.BaseLimitIncrease{})
	}

	all.Streams, more.Streams = ids, ids
	one = rcmgr.BaseLimit{StreamsInbound: 2, StreamsOutbound: 3, Streams: 4, Memory: oneProtocol}
	l.AddServiceLimit(libping.ServiceName, all, more)
	l.AddServicePeerLimit(libping.ServiceName, one, rcmgr.BaseLimitIncrease{})
	l.AddProtocolLimit(libping.ID, all, more)
	l.AddProtocolPeerLimit(libping.ID, one, rcmgr.BaseLimitIncrease{})

	one = rcmgr.BaseLimit{StreamsInbound: 128, StreamsOutbound: 128, Streams: 128, Memory: 32 << 20}
	for _, id := range []protocol.ID{circuitproto.ProtoIDv2Hop, circuitproto.ProtoIDv2Stop} {
		l.AddProtocolPeerLimit(id, one, rcmgr.BaseLimitIncrease{})
	}
}

// oneProtocol is the memory limit, in bytes, of one peer's streams of a small protocol:
// 32 fully grown stream windows.
const oneProtocol = 32 * (256<<20 + 16<<10)
