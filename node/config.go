package node

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
)

// The engines that a folder's store may be kept in.
const (
	EngineNuts   = "nutsdb"
	EnginePebble = "pebble"
)

// Config describes a node. Dir is required, the zero value of every other field
// means its default.
type Config struct {
	Dir       string        // the node's folder; one process at a time
	Store     StoreConfig   // the engine and its limits
	Net       NetConfig     // where to listen
	Limits    Limits        // how much it takes
	Handlers  []HandlerSpec // what it does for others; further ones come by AddHandler
	Dangerous []string      // kinds that may have the profile dangerous
	Version   string        // of the software, told to peers
	Logger    *slog.Logger  // default slog.Default()
	Clock     clock.Clock   // default clock.System()
	// Changed is told of every durable change of a task that this node is home of.
	// It must be quick and must not call the node.
	Changed func(id proto.TaskID, state proto.TaskState)
	// Fail is called at every physical step with its name; an error it returns
	// stops the node there. For tests that stop a process between two steps.
	Fail func(point string) error
	// Simulated replaces the machine by a test's: engine and network.
	Simulated Simulation
}

// A Simulation replaces parts of the machine in tests.
type Simulation struct {
	Engine    store.Engine            // used instead of opening a store under Dir
	Transport func(*transport.Config) // changes the transport's config before it starts
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
	Announce []string // further addresses, put into tickets and told to peers
}

// Limits bound what a node takes and keeps.
type Limits struct {
	MaxPending      int           // tasks this node is home of; default 100 000
	MaxPendingBytes int64         // their sealed bytes; default 256 MiB
	MaxInbox        int           // tasks taken custody of and not finished; default 100 000
	Payload         int64         // bytes of a body given inline to the API; default 10 MiB
	Slots           int           // handlers running at once; default max(4, 2 × cores)
	GracefulTimeout time.Duration // for running handlers at a stop; default 15 s (Windows 5 s)
	IdempotencyTTL  time.Duration // how long a key is remembered; default 7 days
	DoneAge         time.Duration // how long finished records are kept; default 24 h
	DoneCount       int           // how many of them; default 50 000
	DeadAge         time.Duration // how long dead letters stay on the shelf; default 30 days
	DeadCount       int           // how many of them; default 10 000
	MemoryLimit     int64         // bytes that the Go runtime aims to stay below; default 384 MiB, <0 none; GOMEMLIMIT wins
}

func (c Config) withDefaults() Config {
	c.Store.Engine = cmp.Or(c.Store.Engine, EngineNuts)
	c.Store.MaxBlob = cmp.Or(c.Store.MaxBlob, 100<<30)
	c.Limits = c.Limits.withDefaults()
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
	if c.Fail == nil {
		c.Fail = func(string) error { return nil }
	}
	return c
}

func (l Limits) withDefaults() Limits {
	l.MaxPending = cmp.Or(l.MaxPending, 100_000)
	l.MaxPendingBytes = cmp.Or(l.MaxPendingBytes, 256<<20)
	l.MaxInbox = cmp.Or(l.MaxInbox, 100_000)
	l.Payload = cmp.Or(l.Payload, 10<<20)
	l.GracefulTimeout = cmp.Or(l.GracefulTimeout, gracefulTimeout)
	l.IdempotencyTTL = cmp.Or(l.IdempotencyTTL, 7*24*time.Hour)
	l.DoneAge = cmp.Or(l.DoneAge, 24*time.Hour)
	l.DoneCount = cmp.Or(l.DoneCount, 50_000)
	l.DeadAge = cmp.Or(l.DeadAge, 30*24*time.Hour)
	l.DeadCount = cmp.Or(l.DeadCount, 10_000)
	return l
}
