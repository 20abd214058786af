package transport

import (
	"cmp"
	"context"
	"log/slog"
	"regexp"
	"time"

	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
	"github.com/balefire/balefire/transport/route"
)

// Config tunes a transport. The zero value of each field means its default.
type Config struct {
	Listen    []string              // multiaddrs; default QUIC and TCP on port 4001, IPv4 and IPv6; an empty, not nil, slice: none
	Announce  []string              // further multiaddrs that others reach this node at; default none
	Software  string                // name and version that peers are told; default balefire
	Directory Directory             // whom to keep connected with; default nobody
	Joiner    Joiner                // default: no joins
	Bodies    Bodies                // takes streamed bodies; default: none are taken
	Sockets   []quicreuse.Option    // QUIC alone over these instead of QUIC and TCP on the machine's: a simulated network
	Clock     clock.Clock           // default clock.System()
	Logger    *slog.Logger          // default: silent
	Limits    admit.Limits          // what a neighbour may cost; default see there
	Relay     bool                  // serve circuits for members (circuit relay v2); default false
	Reserve   int                   // relays to keep a place at; default 2; negative: none
	Relays    func() []proto.PeerID // members that may relay and live, best effort, a slice of its own; default: none
	Weights   route.Weights         // of the score of relays; default see there
	PortMap   bool                  // ask the router for ports (NAT-PMP, UPnP); default false
	Observe   func(Event)           // told of changes, one after the other; default nobody
	Timing    Timing

	GossipConfig
	MetricsConfig
	DiscoveryConfig
}

// MetricsConfig say where the transport counts.
type MetricsConfig struct {
	Registerer prometheus.Registerer // default: no metrics
	OwnMetrics bool                  // leave those of libp2p out; default false
}

// GossipConfig says who takes what the members tell each other about the mesh.
type GossipConfig struct {
	Ready   func(from proto.PeerID, r *proto.Ready)                                                // takes a peer's hint that it takes what it refused before; must not block; default: dropped
	Control func(from proto.PeerID, m *proto.Message)                                              // takes PROBE and PROBED of ctl streams; must not block; default: dropped
	Sync    func(ctx context.Context, from proto.PeerID, m *proto.Message) (*proto.Message, error) // answers a SYNC with a SYNCED; default: sync streams are refused
	Topic   TopicHandler                                                                           // what the topic says; default: no topic is joined
	Hops    func(p proto.PeerID) []Hop                                                             // what p says of its ways to relays, best effort; default: nothing
	Nonces  Nonces                                                                                 // keeps what was heard already over restarts; default: memory

	// Lookup takes LOOKUP and LOOKUP_REPLY of ctl streams; must not block; default:
	// dropped.
	Lookup func(from proto.PeerID, m *proto.Message)
	// PeerClock takes what the clock of a connected member says now, which that
	// member does not doubt; must not block; default: dropped.
	PeerClock func(time.Time)
}

// DiscoveryConfig says how peers are looked for, besides the Directory.
type DiscoveryConfig struct {
	DHT     bool           // take part in the mesh's Kademlia DHT; default no
	MDNS    bool           // announce this node and look around on the LAN; default no
	MeshTag string         // text that names the mesh, never told in clear; default balefire
	AnyPort bool           // of a node on its way into a mesh: take any ports instead of those of Listen; default no
	Seen    func(Stranger) // takes what is found on the LAN and is no member; must not block; default: dropped
}

// Timing holds a transport's times. The zero value of each field means its default.
type Timing struct {
	Hello     time.Duration // for both hellos; default 5s
	Busy      time.Duration // between heartbeats while frames are unacknowledged; default 2s
	Idle      time.Duration // between heartbeats otherwise; default 10s
	Ack       time.Duration // without an Ack while frames are unacknowledged; default 30s, more for many bytes
	Frame     time.Duration // for a frame that has begun; default 2m
	Write     time.Duration // for one write of at most 64 KiB; default 30s
	Redial    time.Duration // first pause between two dials of a peer; default 1s
	MaxRedial time.Duration // longest such pause; default 60s
}

// Bounds that no one needs to tune.
const (
	maxUnverified = 16      // inbound connections of strangers, and of others that are not known, without a hello
	maxHello      = 8 << 10 // bytes of a hello with its issuer's certificate
	maxAddrs      = 32
	maxMisses     = 3 // heartbeats without an answer
	pingSize      = 100
	bufferSize    = 64 << 10
	maxDials      = 8 // at once
)

var defaultListen = []string{
	"/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/0.0.0.0/tcp/4001",
	"/ip6/::/udp/4001/quic-v1", "/ip6/::/tcp/4001",
}

var portRE = regexp.MustCompile(`/(tcp|udp)/\d+`)

// anyPort returns addrs without their ports: the system chooses.
func anyPort(addrs []string) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = portRE.ReplaceAllString(a, "/$1/0")
	}
	return out
}

func (c Config) withDefaults() Config {
	if c.Listen == nil {
		c.Listen = defaultListen
	}
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.Relays == nil {
		c.Relays = func() []proto.PeerID { return nil }
	}
	c.Reserve = cmp.Or(c.Reserve, 2)
	c.Software = cmp.Or(c.Software, "balefire")
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.MeshTag = cmp.Or(c.MeshTag, "balefire")
	c.Timing = c.Timing.withDefaults()
	return c
}

func (t Timing) withDefaults() Timing {
	t.Hello = cmp.Or(t.Hello, 5*time.Second)
	t.Busy = cmp.Or(t.Busy, 2*time.Second)
	t.Idle = cmp.Or(t.Idle, 10*time.Second)
	t.Ack = cmp.Or(t.Ack, 30*time.Second)
	t.Frame = cmp.Or(t.Frame, 2*time.Minute)
	t.Write = cmp.Or(t.Write, 30*time.Second)
	t.Redial = cmp.Or(t.Redial, time.Second)
	t.MaxRedial = cmp.Or(t.MaxRedial, time.Minute)
	return t
}

// protocols a node speaks.
const (
	streamCtl   = proto.StreamCtl
	streamTask  = proto.StreamTask
	streamChunk = proto.StreamChunk
	streamJoin  = proto.StreamJoin
	streamSync  = proto.StreamSync
	streamEcho  = proto.StreamEcho
)
