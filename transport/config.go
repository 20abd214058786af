package transport

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// Config tunes a transport. The zero value of each field means its default.
type Config struct {
	Listen      []string              // multiaddrs; default QUIC and TCP on port 4001, IPv4 and IPv6; an empty, not nil, slice: none
	Announce    []string              // further multiaddrs that others reach this node at; default none
	Software    string                // name and version that peers are told; default balefire
	Directory   Directory             // whom to keep connected with; default nobody
	Joiner      Joiner                // default: no joins
	Bodies      Bodies                // takes streamed bodies; default: none are taken
	HostOptions []libp2p.Option       // instead of the QUIC and TCP transports: a simulated network
	Clock       clock.Clock           // default clock.System()
	Logger      *slog.Logger          // default: silent
	Registerer  prometheus.Registerer // default: no metrics
	Limits      admit.Limits          // what a neighbour may cost; default see there
	Timing      Timing
}

// Timing holds a transport's times. The zero value of each field means its default.
type Timing struct {
	Hello   time.Duration // for both hellos; default 5s
	Busy    time.Duration // between heartbeats while frames are unacknowledged; default 2s
	Idle    time.Duration // between heartbeats otherwise; default 10s
	Ack     time.Duration // without an Ack while frames are unacknowledged; default 30s, more for many bytes
	Frame   time.Duration // for a frame that has begun; default 2m
	Write   time.Duration // for one write of at most 64 KiB; default 30s
	Redial  time.Duration // first pause between two dials of a peer; default 1s
	Longest time.Duration // longest such pause; default 60s
}

// Bounds that no one needs to tune.
const (
	maxUnverified = 16      // inbound connections that have not said hello
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

func (c Config) withDefaults() Config {
	if c.Listen == nil {
		c.Listen = defaultListen
	}
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	c.Software = cmp.Or(c.Software, "balefire")
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
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
	t.Longest = cmp.Or(t.Longest, time.Minute)
	return t
}

// protocols a node speaks.
const (
	streamCtl   = proto.StreamCtl
	streamTask  = proto.StreamTask
	streamChunk = proto.StreamChunk
	streamJoin  = proto.StreamJoin
)
