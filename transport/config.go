package transport

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"regexp"
	"time"

	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
	"github.com/balefire/balefire/transport/route"
)

// Config configures a transport. The zero value of each field means its default.
type Config struct {
	Listen    []string              // multiaddrs; default: none, this node only dials
	Announce  []string              // further multiaddrs at which this node is reachable; default none
	Software  string                // name and version sent to peers; default balefire-node
	Directory Directory             // peers to stay connected with; default none
	Joiner    Joiner                // default: no joins
	Bodies    Bodies                // receives streamed bodies; default: none are accepted
	Mail      MailReceiver          // default: no mail is accepted
	Sockets   Sockets               // simulated network: only QUIC, over these sockets, instead of QUIC and TCP
	Clock     clock.Clock           // default clock.System()
	Logger    *slog.Logger          // default: silent
	Limits    admit.Limits          // rate limits per peer; defaults see there
	Relay     bool                  // serve circuits for members (circuit relay v2); default false
	Reserve   int                   // relays to keep a reservation at; default none
	Relays    func() []proto.PeerID // live members that may relay, best effort, in a new slice; default: none
	Weights   route.Weights         // of relay scores; default: all relays are equal
	PortMap   bool                  // request port mappings from the router (NAT-PMP, UPnP); default false
	Observe   func(Event)           // called with each event, one at a time; default: none
	Timing    Timing

	Ready     func(from proto.PeerID, r *proto.Ready)                                                // handles a peer's hint that it accepts again what it refused; must not block; default: dropped
	Lookup    func(from proto.PeerID, m *proto.Message)                                              // handles LOOKUP and LOOKUP_REPLY of ctl streams; must not block; default: dropped
	PeerClock func(time.Time)                                                                        // receives the current time of a connected member whose clock is not in doubt; must not block; default: dropped
	Control   func(from proto.PeerID, m *proto.Message)                                              // handles PROBE and PROBED of ctl streams; must not block; default: dropped
	Sync      func(ctx context.Context, from proto.PeerID, m *proto.Message) (*proto.Message, error) // answers a SYNC with a SYNCED; default: sync streams are refused
	Topic     TopicHandler                                                                           // handles messages of the gossip topic; default: the topic is not joined
	Nonces    Nonces                                                                                 // persists which messages of it were received; default: in memory
	Hops      func(p proto.PeerID) []Hop                                                             // p's published paths to relays, best effort; default: none
	Open      func(p proto.PeerID) bool                                                              // whether p announces that any node can dial it; default: none does

	DHT     bool           // participate in the mesh's Kademlia DHT; default false
	MDNS    bool           // announce this node and find others on the LAN; default false
	MeshTag string         // names the mesh, never sent in clear; default balefire
	AnyPort bool           // for a node that joins a mesh: use any ports instead of those in Listen; default false
	Seen    func(Stranger) // receives nodes on the LAN that are not members; must not block; default: dropped

	Registerer prometheus.Registerer // default: no metrics
	OwnMetrics bool                  // omit libp2p's metrics; default false
}

// Timing holds the transport's timing parameters. The zero value of each field means its
// default.
type Timing struct {
	Hello     time.Duration // for both hellos; default 5s, up to three times as long over slow paths and with known peers
	Busy      time.Duration // between heartbeats while frames are unacknowledged; default 2s
	Idle      time.Duration // between heartbeats otherwise; default 10s
	Ack       time.Duration // maximum wait for an Ack while frames are unacknowledged; default 30s, more for many bytes
	Frame     time.Duration // for a frame after its first byte; default 2m
	Redial    time.Duration // first delay between two dials of a peer; default 1s
	MaxRedial time.Duration // maximum such delay; default 60s
}

// Sockets returns the options of a simulated network. Its sockets do not send the packets that
// drops reports.
type Sockets func(drops func(b []byte, to net.Addr, now time.Time) bool) []quicreuse.Option

// Bounds that need no tuning.
const (
	maxUnverified = 16      // inbound connections of strangers before the hello
	maxHello      = 8 << 10 // bytes of a hello, including its issuer's certificate
	maxMisses     = 3       // unanswered heartbeats
	pingSize      = 16
	bufferSize    = 64 << 10
	maxDials      = 8                      // at once
	dialSpread    = 150 * time.Millisecond // the attempts that have waited begin within
)

var portRE = regexp.MustCompile(`/(tcp|udp)/\d+`)

// anyPort returns addrs with port 0, so that the system chooses.
func anyPort(addrs []string) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = portRE.ReplaceAllString(a, "/$1/0")
	}
	return out
}

func (c Config) withDefaults() Config {
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.Relays == nil {
		c.Relays = func() []proto.PeerID { return nil }
	}
	if c.Open == nil {
		c.Open = func(proto.PeerID) bool { return false }
	}
	c.Software = cmp.Or(c.Software, "balefire-node")
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
	t.Redial = cmp.Or(t.Redial, time.Second)
	t.MaxRedial = cmp.Or(t.MaxRedial, time.Minute)
	return t
}

// Protocols that a node serves.
const (
	streamCtl   = proto.StreamCtl
	streamTask  = proto.StreamTask
	streamLease = proto.StreamLease
	streamMail  = proto.StreamMail
	streamChunk = proto.StreamChunk
	streamJoin  = proto.StreamJoin
	streamSync  = proto.StreamSync
	streamEcho  = proto.StreamEcho
)
