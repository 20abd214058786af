package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/blob"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/store/pebble"
	"github.com/balefire/balefire/wire"
)

// A storage is the locked folder of a node with its stores. Commands that work on a
// stopped node open it too.
type storage struct {
	lock    *store.DirLock
	store   *store.Store
	blobs   *blob.Dir
	journal *audit.Journal
}

// openStorage opens the storage in cfg.Dir. A second process is refused. onFull is called
// when new work is refused because the disk or memory is full, and when it is accepted
// again; it may be nil.
func openStorage(cfg Config, reg prometheus.Registerer, onFull func(why error)) (_ *storage, err error) {
	g := new(storage)
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	if g.lock, err = store.LockDir(cfg.Dir); err != nil {
		return nil, err
	}
	if err = finishRestore(cfg.Dir); err != nil {
		return nil, err
	}
	engine := cfg.Simulated.Engine
	if engine == nil {
		if engine, err = openEngine(cfg); err != nil {
			return nil, err
		}
	}
	scfg := storeConfig(cfg, reg)
	scfg.OnRefusal = onFull
	if g.store, err = store.Open(engine, scfg); err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	blobs := blob.Config{MaxBlob: cfg.Store.MaxBlob, MaxTotal: cfg.Store.MaxBlobs, Clock: cfg.Clock, Space: store.DiskSpace(cfg.Dir)}
	if g.blobs, err = blob.Open(filepath.Join(cfg.Dir, blobDir), blobs); err != nil {
		return nil, err
	}
	g.journal, err = audit.Open(filepath.Join(cfg.Dir, audit.DirName), audit.Config{Clock: cfg.Clock})
	return g, err
}

func storeConfig(cfg Config, reg prometheus.Registerer) store.Config {
	c := store.Config{Clock: cfg.Clock, Registerer: reg, Reserve: cfg.Store.Reserve}
	if cfg.Simulated.Engine == nil {
		c.Space, c.Memory = store.DiskSpace(cfg.Dir), store.HeapInUse()
	}
	return c
}

// Close closes everything in reverse order.
func (s *storage) Close() error {
	var errs []error
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	if s.blobs != nil {
		errs = append(errs, s.blobs.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// openEngine opens the configured engine and refuses a folder written by another engine.
func openEngine(cfg Config) (store.Engine, error) {
	dir := filepath.Join(cfg.Dir, storeDir)
	name := cmp.Or(cfg.Store.Engine, EngineNuts)
	if name != EngineNuts && name != EnginePebble {
		return nil, fmt.Errorf("%w: store engine %.40q: must be %s or %s", wire.ErrInvalid, name, EngineNuts, EnginePebble)
	}
	if err := store.MarkEngine(dir, name); err != nil {
		return nil, err
	}
	return openEngineIn(dir, name, cfg)
}

// openEngineIn opens the named engine in the folder of a store.
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

// pebbleConfig gives Pebble its share of the memory limit: less on a small machine, its
// own defaults from 384 MiB on.
func pebbleConfig(cfg Config) pebble.Config {
	c := pebble.Config{Logger: cmp.Or(cfg.Logger, slog.Default())}
	if limit := memoryLimit(cfg.Limits.MemoryLimit); limit > 0 {
		c.CacheSize, c.MemTableSize = max(4<<20, min(limit/12, 32<<20)), max(1<<20, min(limit/48, 8<<20))
	}
	return c
}

// logProgress logs the progress of opening a large store, so that nobody mistakes it for
// a hang (S50).
func logProgress(log *slog.Logger, cfg Config) func(done, total int64) {
	clk := cfg.Clock
	if clk.IsZero() {
		clk = clock.System()
	}
	start := clk.Mono()
	return func(done, total int64) {
		cfg.reportOpening("read %d of %d MiB of the store", done>>20, total>>20)
		if took := clk.Mono() - start; took.Seconds() >= 1 {
			log.Info("opening the store", "read_mib", done>>20, "total_mib", total>>20)
		}
	}
}

func (c Config) reportOpening(format string, a ...any) {
	if c.Opening != nil {
		c.Opening(fmt.Sprintf(format, a...))
	}
}

// A StoreReport is the result of a check or a salvage.
type StoreReport struct {
	Engine  string   `json:"engine"`
	Records int      `json:"records"`
	Clean   bool     `json:"clean"`
	Notes   []string `json:"notes,omitempty"`
}

// CheckStore reads the whole store of a stopped node without changing anything.
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

// SalvageStore copies every committed record that is still readable from the store of
// the stopped node in dir to a new node folder at dst.
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
		return StoreReport{}, fmt.Errorf("%w: salvage supports %s only; restore a damaged %s store from a snapshot", wire.ErrInvalid, EngineNuts, name)
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

// engineOf returns the engine that wrote the store in dir.
func engineOf(dir string) (string, error) {
	for _, name := range []string{EngineNuts, EnginePebble} {
		if _, err := os.Stat(filepath.Join(dir, storeDir, name)); err == nil {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w: %s has no store: is it a node's folder?", wire.ErrNotFound, dir)
}
