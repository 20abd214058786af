// Package datadir opens the folder of a node: its lock, its store, its ledger, its files and
// its audit log. It also copies, checks, salvages, migrates and restores them.
//
// Its promise: one process at a time, and whatever interrupts a migration or a restore,
// the folder has the old store and ledger or the complete new ones.
package datadir

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

// The parts of a node's folder, except that of the audit log.
const (
	Identity = "identity"
	Store    = "store"
	Blob     = "blob"
	Ledger   = "ledger"
	Run      = "run"

	deadMail = "dead-mail.jsonl" // the archive of dead letters of mail

	engineFile = "ENGINE" // in Store
)

// Store engines.
const (
	EngineNuts   = "nutsdb"
	EnginePebble = "pebble"
)

// Config says how the folder Dir is opened. The zero value of every other field means its
// default.
type Config struct {
	Dir        string
	Engine     string // EngineNuts (default) or EnginePebble; it cannot be changed once the folder has a store
	Segment    int64  // bytes of a NutsDB segment; default 64 MiB, fixed for life
	Reserve    int64  // bytes of free disk below which new work is refused; default max(256 MiB, 5 %)
	MaxBlob    int64  // bytes of one streamed body; default 100 GiB
	MaxBlobs   int64  // bytes of all of them; default half of the free disk
	Memory     int64  // configured memory limit in bytes: see memory.RuntimeLimit
	Clock      clock.Clock
	Logger     *slog.Logger          // default slog.Default()
	Registerer prometheus.Registerer // default none
	Opening    func(text string)     // called with the progress while a large store is read
	OnFull     func(why error)       // called when the store begins to refuse new work, and with nil when it ends
	Simulated  store.Engine          // used instead of opening a store under Dir

	LedgerSegment int64         // bytes of a new segment of the ledger; default that of package ledger
	LedgerTail    int64         // bytes of the newest entries in memory; default likewise
	LedgerPace    time.Duration // least time after a large batch of the ledger; default none

	Fail func(point string) error // called at each failpoint of the ledger: see [ledger.Config]; default nothing fails
}

func (c Config) withDefaults() Config {
	c.Engine = cmp.Or(c.Engine, EngineNuts)
	c.MaxBlob = cmp.Or(c.MaxBlob, 100<<30)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.Opening == nil {
		c.Opening = func(string) {}
	}
	return c
}
