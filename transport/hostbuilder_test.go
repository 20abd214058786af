package transport

import (
	"crypto/rand"
	"errors"
	"net"
	"reflect"
	"slices"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/config"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	circuitproto "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	libping "github.com/libp2p/go-libp2p/p2p/protocol/ping"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/proto"
)

// TestHostMatchesLibp2p compares the host with one made by libp2p's own constructor: both
// have the same protocols, security and multiplexers.
func TestHostMatchesLibp2p(t *testing.T) {
	theirs, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"),
		libp2p.DisableMetrics(), libp2p.EnableRelay(), libp2p.EnableAutoNATv2())
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	ours := bareHost(t, prometheus.NewRegistry())
	defer func() {
		if err := errors.Join(ours.Close(), ours.Close()); err != nil { // the second one does nothing
			t.Error(err)
		}
	}()
	a, b := ours.Mux().Protocols(), theirs.Mux().Protocols()
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) {
		t.Errorf("protocols %v, want %v", a, b)
	}
	for _, addr := range theirs.Addrs() {
		other := bareHost(t, nil)
		if err := other.Connect(t.Context(), peer.AddrInfo{ID: theirs.ID(), Addrs: append(other.Addrs()[:0], addr)}); err != nil {
			t.Fatalf("dial %v: %v", addr, err)
		}
		got := other.Network().ConnsToPeer(theirs.ID())[0].ConnState()
		want := network.ConnectionState{Transport: "quic-v1", UsedEarlyMuxerNegotiation: got.UsedEarlyMuxerNegotiation}
		if isTCP(addr) {
			want.Transport, want.Security, want.StreamMultiplexer = "tcp", "/tls/1.0.0", "/yamux/1.0.0"
		}
		if got != want {
			t.Errorf("connection to %v is %+v, want %+v", addr, got, want)
		}
		other.Close()
	}
}

// bareHost returns a host on loopback that may dial any peer.
func bareHost(t *testing.T, m prometheus.Registerer) host.Host {
	t.Helper()
	h, err := bareBuilder(t, m, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1").build()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// openGater returns a gater that lets everybody connect, anywhere.
func openGater() *gater {
	return &gater{func(peer.ID) bool { return true }, func(proto.PeerID, ma.Multiaddr) bool { return true }}
}

func bareBuilder(t *testing.T, m prometheus.Registerer, listen ...string) hostBuilder {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := parseListen(listen)
	if err != nil {
		t.Fatal(err)
	}
	limits, conns, err := bounds()
	if err != nil {
		t.Fatal(err)
	}
	everybody := openGater()
	return hostBuilder{key: key, listen: addrs, gater: everybody, limits: limits, conns: conns, ranker: ranker(nil), metrics: m, thinner: new(thinner)}
}

func TestHostClosesWhenListenFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := "/ip4/127.0.0.1/tcp/" + l.Addr().String()[len("127.0.0.1:"):]
	if h, err := bareBuilder(t, nil, addr).build(); err == nil {
		h.Close()
		t.Error("two nodes listen on one port")
	}
}

// TestServiceLimitsMatchLibp2p compares this package's service limits with libp2p's.
func TestServiceLimitsMatchLibp2p(t *testing.T) {
	ours, theirs := rcmgr.DefaultLimits, rcmgr.DefaultLimits
	serviceLimits(&ours)
	libp2p.SetDefaultServiceLimits(&theirs)
	a, b := ours.Scale(8<<30, 4096).ToPartialLimitConfig(), theirs.Scale(8<<30, 4096).ToPartialLimitConfig()
	for _, name := range []string{identify.ServiceName, libping.ServiceName} {
		if !reflect.DeepEqual(a.Service[name], b.Service[name]) || !reflect.DeepEqual(a.ServicePeer[name], b.ServicePeer[name]) {
			t.Errorf("service %s: %+v and %+v a peer, want %+v and %+v", name, a.Service[name], a.ServicePeer[name], b.Service[name], b.ServicePeer[name])
		}
	}
	for _, id := range []protocol.ID{identify.ID, identify.IDPush, libping.ID} {
		if !reflect.DeepEqual(a.Protocol[id], b.Protocol[id]) {
			t.Errorf("protocol %s: %+v, want %+v", id, a.Protocol[id], b.Protocol[id])
		}
	}
	for _, id := range []protocol.ID{identify.ID, identify.IDPush, libping.ID, circuitproto.ProtoIDv2Hop, circuitproto.ProtoIDv2Stop} {
		if !reflect.DeepEqual(a.ProtocolPeer[id], b.ProtocolPeer[id]) {
			t.Errorf("protocol %s of a peer: %+v, want %+v", id, a.ProtocolPeer[id], b.ProtocolPeer[id])
		}
	}
}

// TestDerivedKeysMatchLibp2p checks that an updated node can still reset QUIC connections
// of its previous version.
func TestDerivedKeysMatchLibp2p(t *testing.T) {
	key := bareBuilder(t, nil).key
	reset, err := config.PrivKeyToStatelessResetKey(key)
	if err != nil {
		t.Fatal(err)
	}
	token, err := config.PrivKeyToTokenGeneratorKey(key)
	if err != nil {
		t.Fatal(err)
	}
	r, k, err := quicKeys(key)
	if err != nil || r != reset || k != token {
		t.Errorf("keys %x and %x, %v; want %x and %x", r, k, err, reset, token)
	}
}
