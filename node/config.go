package node

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/memory"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/idempotency"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Config describes a node. It is made by [DefaultConfig]: a node without the defaults is
// refused. Zero means zero in the settings, and the default in what follows them.
type Config struct {
	Dir string // the node's folder; one process at a time
	settings.Settings
	Functions map[string]handler.Handler // by kind: what Handle registered
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

// DefaultConfig returns the configuration of a node in dir for which nothing is set. It
// listens on port 4001 and looks for members on the LAN.
func DefaultConfig(dir string) Config { return Config{Dir: dir, Settings: settings.Default()} }

// prepared returns c with all defaults and sets up the Go runtime, before anything takes
// memory. It refuses a Config that was not made by DefaultConfig, and settings that are not
// allowed.
func (c Config) prepared() (Config, error) {
	if c.Store.Engine == "" {
		return c, fmt.Errorf("%w: the Config has no defaults: make it with node.DefaultConfig", wire.ErrInvalid)
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	memory.TuneRuntime(int64(c.Limits.MemoryLimit))
	return c.withDefaults(), nil
}

// Storage returns the part of c that opens the node's folder.
func (c Config) Storage() datadir.Config {
	return datadir.Config{
		Dir: c.Dir, Engine: c.Store.Engine, Segment: int64(c.Store.Segment), Reserve: int64(c.Store.Reserve), MaxBlob: int64(c.Store.MaxBlob), MaxBlobs: int64(c.Store.MaxBlobs),
		LedgerSegment: int64(c.Mail.Segment), LedgerTail: int64(c.Mail.Tail), LedgerPace: c.Mail.Pace,
		Memory: int64(c.Limits.MemoryLimit), Clock: c.Clock, Logger: c.Logger, Opening: c.Opening, Simulated: c.Simulated.Engine, Fail: c.Fail,
	}
}

func (c Config) reportOpening(format string, a ...any) {
	if c.Opening != nil {
		c.Opening(fmt.Sprintf(format, a...))
	}
}

// withDefaults sets what is not a setting to its default, and computes the settings that
// depend on the machine.
func (c Config) withDefaults() Config {
	c.Limits = computed(c.Limits, c.memoryLimit(), c.Store.Engine)
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

// memoryLimit returns the limit of the Go runtime in bytes; 0 or less: none.
func (c Config) memoryLimit() int64 { return memory.RuntimeLimit(int64(c.Limits.MemoryLimit)) }

func (c Config) keys() idempotency.Limits {
	return idempotency.Limits{For: c.Limits.IdempotencyTTL, Max: c.Limits.MaxKeys}
}

// recordBytes returns how many bytes of records the outbox may hold, and the inbox as many,
// with a memory limit in bytes (0 or less: none).
func recordBytes(limit int64) int64 { return cmp.Or(max(limit, 0), memory.MaxDefault) / 3 * 2 }

// computed sets the limits that are zero, most of them in proportion to the memory limit in
// bytes (0 or less: none), for the named engine.
func computed(l settings.Limits, limit int64, engine string) settings.Limits {
	scaled := func(n int64) int {
		return int(max(1, min(n*(cmp.Or(max(limit, 0), memory.MaxDefault)>>10)/(memory.MaxDefault>>10), 10_000_000)))
	}
	keys := int64(200_000) // on NutsDB each is kept in memory
	if engine == datadir.EnginePebble {
		keys = 1_000_000
	}
	l.MaxPending = cmp.Or(l.MaxPending, scaled(100_000))
	l.MaxPendingBytes = cmp.Or(l.MaxPendingBytes, settings.Bytes(recordBytes(limit)))
	l.MaxInbox = cmp.Or(l.MaxInbox, scaled(100_000))
	l.GracefulTimeout = cmp.Or(l.GracefulTimeout, gracefulTimeout)
	l.MaxKeys = cmp.Or(l.MaxKeys, scaled(keys))
	l.DoneCount = cmp.Or(l.DoneCount, scaled(50_000))
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
