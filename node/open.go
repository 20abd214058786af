package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/blob"
	"github.com/balefire/balefire/store/journal"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/store/pebble"
)

// A ground is what a node stands on: its folder, locked, with all that keeps
// bytes in it. It is also opened by commands that work on a stopped node.
type ground struct {
	lock    *store.DirLock
	store   *store.Store
	blobs   *blob.Dir
	journal *journal.Journal
}

// openGround opens what is below cfg.Dir. A second process is refused.
// told hears when new work is refused because the disk or memory is full, and
// when it is taken again; nil for nobody.
func openGround(cfg Config, reg prometheus.Registerer, told func(why error)) (_ *ground, err error) {
	g := new(ground)
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	if g.lock, err = store.LockDir(cfg.Dir); err != nil {
		return nil, err
	}
	if err = settleRestore(cfg.Dir); err != nil {
		return nil, err
	}
	engine := cfg.Simulated.Engine
	if engine == nil {
		if engine, err = openEngine(cfg); err != nil {
			return nil, err
		}
	}
	scfg := storeConfig(cfg, reg)
	scfg.Told = told
	if g.store, err = store.Open(engine, scfg); err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	blobs := blob.Config{MaxBlob: cfg.Store.MaxBlob, MaxTotal: cfg.Store.MaxBlobs, Clock: cfg.Clock, Space: store.DiskSpace(cfg.Dir)}
	if g.blobs, err = blob.Open(filepath.Join(cfg.Dir, blobDir), blobs); err != nil {
		return nil, err
	}
	g.journal, err = journal.Open(filepath.Join(cfg.Dir, auditDir), journal.Config{Clock: cfg.Clock})
	return g, err
}

func storeConfig(cfg Config, reg prometheus.Registerer) store.Config {
	c := store.Config{Clock: cfg.Clock, Registerer: reg, Reserve: cfg.Store.Reserve}
	if cfg.Simulated.Engine == nil {
		c.Space, c.Memory = store.DiskSpace(cfg.Dir), store.HeapInUse()
	}
	return c
}

// Close closes what was opened, in the opposite order.
func (g *ground) Close() error {
	var errs []error
	if g.journal != nil {
		errs = append(errs, g.journal.Close())
	}
	if g.store != nil {
		errs = append(errs, g.store.Close())
	}
	if g.blobs != nil {
		errs = append(errs, g.blobs.Close())
	}
	if g.lock != nil {
		errs = append(errs, g.lock.Close())
	}
	return errors.Join(errs...)
}

// openEngine opens the engine that the configuration names, and refuses a
// folder that another engine wrote.
func openEngine(cfg Config) (store.Engine, error) {
	dir := filepath.Join(cfg.Dir, storeDir)
	name := cmp.Or(cfg.Store.Engine, EngineNuts)
	if name != EngineNuts && name != EnginePebble {
		return nil, fmt.Errorf("%w: store engine %.40q: it is %s or %s", ErrInvalid, name, EngineNuts, EnginePebble)
	}
	if err := store.MarkEngine(dir, name); err != nil {
		return nil, err
	}
	return openEngineIn(dir, name, cfg)
}

// openEngineIn opens the named engine below the folder of a store.
func openEngineIn(dir, name string, cfg Config) (store.Engine, error) {
	dir = filepath.Join(dir, name)
	log := cmp.Or(cfg.Logger, slog.Default())
	if name == EnginePebble {
		return pebble.Open(dir, pebbleConfig(cfg))
	}
	return nuts.Open(dir, nuts.Config{
		SegmentSize: cfg.Store.Segment, Logger: log, Clock: cfg.Clock, Progress: logProgress(log, cfg),
		MaxMemory: max(memoryLimit(cfg.Limits.MemoryLimit), 0),
	})
}

// pebbleConfig gives Pebble its part of the memory limit: less of it on a small
// machine, its own defaults from 384 MiB on.
func pebbleConfig(cfg Config) pebble.Config {
	c := pebble.Config{Logger: cmp.Or(cfg.Logger, slog.Default())}
	if limit := memoryLimit(cfg.Limits.MemoryLimit); limit > 0 {
		c.CacheSize, c.MemTableSize = max(4<<20, min(limit/12, 32<<20)), max(1<<20, min(limit/48, 8<<20))
	}
	return c
}

// logProgress logs how far the opening of a large store is, so that nobody takes
// it for hung (S50).
func logProgress(log *slog.Logger, cfg Config) func(done, total int64) {
	clk := cfg.Clock
	if clk.IsZero() {
		clk = clock.System()
	}
	start := clk.Mono()
	return func(done, total int64) {
		cfg.tellOpening("%d of %d MiB of the store are read", done>>20, total>>20)
		if took := clk.Mono() - start; took.Seconds() >= 1 {
			log.Info("opening the store", "read_mib", done>>20, "total_mib", total>>20)
		}
	}
}

func (c Config) tellOpening(format string, a ...any) {
	if c.Opening != nil {
		c.Opening(fmt.Sprintf(format, a...))
	}
}

// A StoreReport says what a check or a salvage found.
type StoreReport struct {
	Engine  string   `json:"engine"`
	Records int      `json:"records"`
	Clean   bool     `json:"clean"`
	Notes   []string `json:"notes,omitempty"`
}

// CheckStore reads the whole store of a stopped node and changes nothing.
func CheckStore(dir string) (StoreReport, error) {
	lock, err := store.LockDir(dir)
	if err != nil {
		return StoreReport{}, err
	}
	defer lock.Close()
	name, err := engineOf(dir)
	if err != nil {
		return StoreReport{}, err
	}
	if name == EnginePebble {
		return checkPebble(dir)
	}
	r, err := nuts.Check(filepath.Join(dir, storeDir, name))
	if err != nil {
		return StoreReport{}, err
	}
	return nutsReport(r), nil
}

// SalvageStore copies every committed record that can still be read out of the
// store of the stopped node in dir into a fresh node folder at dst.
func SalvageStore(dir, dst string) (StoreReport, error) {
	lock, err := store.LockDir(dir)
	if err != nil {
		return StoreReport{}, err
	}
	defer lock.Close()
	name, err := engineOf(dir)
	if err != nil {
		return StoreReport{}, err
	}
	if name != EngineNuts {
		return StoreReport{}, fmt.Errorf("%w: salvage knows the files of %s; a damaged %s store is restored from a snapshot", ErrInvalid, EngineNuts, name)
	}
	if err := store.MarkEngine(filepath.Join(dst, storeDir), name); err != nil {
		return StoreReport{}, err
	}
	r, err := nuts.Salvage(filepath.Join(dir, storeDir, name), filepath.Join(dst, storeDir, name))
	if err != nil {
		return StoreReport{}, err
	}
	return nutsReport(r), nil
}

// engineOf reads which engine wrote the store below dir.
func engineOf(dir string) (string, error) {
	for _, name := range []string{EngineNuts, EnginePebble} {
		if _, err := os.Stat(filepath.Join(dir, storeDir, name)); err == nil {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w: %s has no store: is it a node's folder?", ErrNotFound, dir)
}
