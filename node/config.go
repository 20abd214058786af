package node

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/memory"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/idempotency"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Config describes a node. Dir is required; the zero value of every other field means
// its default.
type Config struct {
	Dir       string                     // the node's folder; one process at a time
	Store     StoreConfig                // the engine and its limits
	Net       NetConfig                  // how peers reach it
	Mesh      MeshConfig                 // membership and probes
	Queues    QueueConfig                // what it signs for others as an admin
	Mail      MailConfig                 // how much mail it keeps, and how
	Limits    Limits                     // bounds on what it accepts and keeps
	Handlers  []wire.HandlerSpec         // what it runs for others; Handlers.Add adds more
	Functions map[string]handler.Handler // by kind: what Handle registered
	Dangerous []string                   // kinds that may have the profile dangerous
	Version   string                     // of the software, sent to peers
	Logger    *slog.Logger               // default slog.Default()
	Clock     clock.Clock                // default clock.System()
	// Changed is called for every durable change of a task whose home is this node. It
	// must be quick and must not call the node.
	Changed func(id proto.TaskID, state proto.TaskState)
	// Opening is called with the progress, in a few words, while New reads a large
	// store. It must be quick. Without it the progress is only logged.
	Opening func(text string)
	// Stop is called when a person stops the node by a command; it must cancel the
	// context of Run. Without it the command is refused.
	Stop func()
	// Fail is called with the name of each failpoint; an error that it returns stops
	// the node there. It is for tests that stop a process between two steps.
	Fail func(point string) error
	// Simulated replaces parts of the machine in tests: engine, network and load.
	Simulated Simulation
}

// A Simulation replaces parts of the machine in tests.
type Simulation struct {
	Engine    store.Engine                // used instead of opening a store under Dir
	Transport func(*transport.Config)     // changes the transport's config before it starts
	Gossip    func(*gossip.Config)        // changes the config of gossip before it starts
	Load      func() (cpu, memory uint32) // how busy the machine is, in permille
}

// StoreConfig chooses the store. It cannot be changed once a folder has one.
type StoreConfig struct {
	Engine   string // nutsdb (default) or pebble
	Reserve  int64  // bytes of free disk below which new work is refused; default max(256 MiB, 5 %)
	Segment  int64  // bytes of a NutsDB segment; default 64 MiB, fixed for life
	MaxBlob  int64  // bytes of one streamed body; default 100 GiB
	MaxBlobs int64  // bytes of all of them; default half of the free disk
}

// NetConfig says how peers reach this node.
type NetConfig struct {
	Listen   []string // multiaddrs; default QUIC and TCP on port 4001 of every interface
	Announce []string // further addresses, put into tickets and sent to peers
	Seeds    []string // further members to dial: multiaddrs that end in /p2p/ and an id
	NoRelay  bool     // do not relay; default: relay for members if the certificate has the role
	Relays   int      // relays to hold a reservation at; default 2, negative: none
	NoDHT    bool     // stay out of the mesh's hash table
	NoMDNS   bool     // no discovery on the LAN
	PortMap  bool     // ask the router for a port mapping
	// OwnMetrics omits the metrics of libp2p.
	OwnMetrics bool
	Score      ScoreWeights
}

// ScoreWeights weigh the terms of a relay's score. Zero: the default; negative: the
// term is ignored.
type ScoreWeights struct {
	Bandwidth float64 // of the measured bandwidth; default 1
	Latency   float64 // of 1 divided by the round trip; default 1
	Loss      float64 // of the measured loss, which is subtracted; default 2
}

// MeshConfig tunes the membership of a node.
type MeshConfig struct {
	ProbeInterval  time.Duration // between two probes; default 1 s
	ProbeTimeout   time.Duration // for an answer; default 500 ms
	SyncInterval   time.Duration // between two syncs with other members; default 30 s
	SuspectRecover time.Duration // until a member that was suspected is given shared work again; default 5 s
	DeadRecover    time.Duration // likewise for one that was dead; default 30 s
	PruneAge       time.Duration // of a dead member's row; default 30 days
	PruneLimit     int           // rows removed at once; default 100
	PruneInterval  time.Duration // default 1 h
	Priority       int           // when the home of a queue is chosen; default 100
	Labels         []string      // words or key=value pairs sent to the members
}

// QueueConfig is what this node does for queues as an admin.
type QueueConfig struct {
	MadeBy   []string // members whose new queues it signs, as in an allow list; default role:work
	MaxNames int      // of queues and others, that it signs for one member; default 64
}

// MailConfig says how much mail a node keeps, and how.
type MailConfig struct {
	MaxBytes  int64         // of the letters in all mailboxes and topics; default 10 GiB
	MaxKeys   int           // dedupe keys that are remembered; default 200 000
	Keep      time.Duration // how long a new mailbox keeps mail that is done; zero: it is gone at once
	KeepBytes int64         // of the letters of such mail in all mailboxes; default 256 MiB
	Segment   int64         // bytes of a new segment of the ledger; default 64 MiB, at most 100 MiB
	Tail      int64         // bytes of the newest mail in memory; default 16 MiB
	Pace      time.Duration // least time from one sync of more than 16 mails to the next write; default none, at most 100 ms
	Durable   bool          // mail that may be answered before its fsync is not
}

// Limits bound what a node accepts and keeps. Where a default names "384 MiB" it is
// for a memory limit of 384 MiB and scales with the memory limit.
type Limits struct {
	MaxPending      int           // tasks whose home is this node; default 100 000 (384 MiB)
	MaxPendingBytes int64         // their sealed bytes; default 256 MiB (384 MiB)
	MaxInbox        int           // tasks in custody that have not finished; default 100 000 (384 MiB)
	MaxInboxBytes   int64         // of their records; default 256 MiB (384 MiB)
	QueueBodies     int           // queued tasks with a body above 256 KiB that a home keeps at once; default 1024
	Payload         int64         // bytes of a body given inline to the API; default 10 MiB
	Slots           int           // handlers running at once; default max(4, 2 × cores)
	GracefulTimeout time.Duration // for running handlers at a stop; default 15 s (Windows 5 s)
	StallAfter      time.Duration // a handler of a queued task that reports progress is stopped after this long without any; default 5 min
	IdempotencyTTL  time.Duration // how long a key is remembered; default 7 days
	MaxKeys         int           // of tasks made here, and of those that succeeded here for others; default 200 000 each, 1 000 000 on Pebble (384 MiB)
	DoneAge         time.Duration // how long finished records are kept; default 24 h
	DoneCount       int           // how many of them; default 50 000 (384 MiB)
	DeadAge         time.Duration // how long dead letters are kept; default 30 days
	DeadCount       int           // how many of them; default 10 000 (384 MiB)
	MemoryLimit     int64         // bytes that the Go runtime aims to stay below; default what the machine or container allows, at most 384 MiB; <0 none; GOMEMLIMIT wins
}

// Storage returns the part of c that opens the node's folder.
func (c Config) Storage() datadir.Config {
	return datadir.Config{
		Dir: c.Dir, Engine: c.Store.Engine, Segment: c.Store.Segment, Reserve: c.Store.Reserve, MaxBlob: c.Store.MaxBlob, MaxBlobs: c.Store.MaxBlobs,
		LedgerSegment: c.Mail.Segment, LedgerTail: c.Mail.Tail, LedgerPace: c.Mail.Pace, Memory: c.Limits.MemoryLimit, Clock: c.Clock, Logger: c.Logger, Opening: c.Opening, Simulated: c.Simulated.Engine,
	}
}

func (c Config) reportOpening(format string, a ...any) {
	if c.Opening != nil {
		c.Opening(fmt.Sprintf(format, a...))
	}
}

func (c Config) withDefaults() Config {
	c.Store.Engine = cmp.Or(c.Store.Engine, datadir.EngineNuts)
	c.Store.MaxBlob = cmp.Or(c.Store.MaxBlob, 100<<30)
	c.Limits, c.Mesh = c.Limits.withDefaults(memory.RuntimeLimit(c.Limits.MemoryLimit), c.Store.Engine), c.Mesh.withDefaults()
	if c.Queues.MadeBy == nil {
		c.Queues.MadeBy = []string{"role:" + identity.RoleWork}
	}
	c.Version = cmp.Or(c.Version, "dev")
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.Changed == nil {
		c.Changed = func(proto.TaskID, proto.TaskState) {}
	}
	if c.Simulated.Load == nil {
		c.Simulated.Load = new(machineLoad).load
	}
	if c.Fail == nil {
		c.Fail = func(string) error { return nil }
	}
	return c
}

func (m MeshConfig) withDefaults() MeshConfig {
	m.PruneAge = cmp.Or(m.PruneAge, 30*24*time.Hour)
	m.PruneLimit = cmp.Or(m.PruneLimit, 100)
	m.PruneInterval = cmp.Or(m.PruneInterval, time.Hour)
	m.Priority = cmp.Or(m.Priority, 100)
	return m
}

func (l Limits) keys() idempotency.Limits {
	return idempotency.Limits{For: l.IdempotencyTTL, Max: l.MaxKeys}
}

// withDefaults fills in the defaults, some in proportion to memory, the memory limit
// in bytes (0 or less: none), for the named engine.
func (l Limits) withDefaults(limit int64, engine string) Limits {
	if limit <= 0 {
		limit = memory.MaxDefault
	}
	scaled := func(n int64) int { return int(max(1, min(n*(limit>>10)/(memory.MaxDefault>>10), 10_000_000))) }
	keys := int64(200_000) // on NutsDB each is kept in memory
	if engine == datadir.EnginePebble {
		keys = 1_000_000
	}
	l.MaxPending = cmp.Or(l.MaxPending, scaled(100_000))
	l.MaxPendingBytes = cmp.Or(l.MaxPendingBytes, limit/3*2)
	l.MaxInbox = cmp.Or(l.MaxInbox, scaled(100_000))
	l.MaxInboxBytes = cmp.Or(l.MaxInboxBytes, limit/3*2)
	l.QueueBodies = cmp.Or(l.QueueBodies, 1024)
	l.Payload = cmp.Or(l.Payload, 10<<20)
	l.GracefulTimeout = cmp.Or(l.GracefulTimeout, gracefulTimeout)
	l.StallAfter = cmp.Or(l.StallAfter, 5*time.Minute)
	l.IdempotencyTTL = cmp.Or(l.IdempotencyTTL, 7*24*time.Hour)
	l.MaxKeys = cmp.Or(l.MaxKeys, scaled(keys))
	l.DoneAge = cmp.Or(l.DoneAge, 24*time.Hour)
	l.DoneCount = cmp.Or(l.DoneCount, scaled(50_000))
	l.DeadAge = cmp.Or(l.DeadAge, 30*24*time.Hour)
	l.DeadCount = cmp.Or(l.DeadCount, scaled(10_000))
	return l
}

// Handle registers h, of the program that embeds the node, for tasks of a kind. allow
// lists who may send them: peer:NAME, peer:ID or role:ROLE. Other settings can be changed
// in the entry that is added to c.Handlers.
func (c *Config) Handle(kind string, h handler.Handler, allow ...string) {
	c.Handlers = append(c.Handlers, wire.HandlerSpec{Kind: kind, Type: wire.TypeFunction, Allow: allow})
	if c.Functions == nil {
		c.Functions = map[string]handler.Handler{}
	}
	c.Functions[kind] = h
}
