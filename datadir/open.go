package datadir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/memory"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/store/pebble"
	"github.com/balefire/balefire/wire"
)

// A Dir is the locked folder of a node with its stores. Commands that work on a stopped
// node open it too.
type Dir struct {
	Store *store.Store
	Blobs *bodies.Store
	Audit *audit.Journal

	ledger atomic.Pointer[ledger.Ledger] // nil until OpenLedger

	cfg  Config
	path string
	lock *store.DirLock

	snapshots sync.Mutex // held while one is made: they use the same temporary folder
}

// Open opens the folder cfg.Dir, completes a restore that was interrupted and removes other
// copies that were. A second process is refused.
func Open(cfg Config) (_ *Dir, err error) {
	cfg = cfg.withDefaults()
	d := &Dir{cfg: cfg, path: cfg.Dir}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.lock, err = store.LockDir(cfg.Dir); err != nil {
		return nil, err
	}
	if err = finishRestore(cfg.Dir); err != nil {
		return nil, err
	}
	removeUnfinished(cfg)
	engine := cfg.Simulated
	if engine == nil {
		if engine, err = openEngine(cfg); err != nil {
			return nil, err
		}
	}
	if d.Store, err = store.Open(engine, storeConfig(cfg)); err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	blobs := bodies.Config{MaxBody: cfg.MaxBlob, MaxTotal: cfg.MaxBlobs, Clock: cfg.Clock, Space: store.DiskSpace(cfg.Dir)}
	_, blobs.Reserve = d.Store.Space()
	if d.Blobs, err = bodies.Open(filepath.Join(cfg.Dir, Blob), blobs); err != nil {
		return nil, err
	}
	d.Audit, err = audit.Open(filepath.Join(cfg.Dir, audit.DirName), audit.Config{Clock: cfg.Clock})
	return d, err
}

func storeConfig(cfg Config) store.Config {
	c := store.Config{Clock: cfg.Clock, Registerer: cfg.Registerer, Reserve: cfg.Reserve, OnRefusal: cfg.OnFull}
	if cfg.Simulated == nil {
		c.Space, c.Memory = store.DiskSpace(cfg.Dir), store.HeapInUse()
	}
	return c
}

// Close closes everything in reverse order.
func (d *Dir) Close() error {
	var errs []error
	if l := d.ledger.Load(); l != nil {
		errs = append(errs, l.Close())
	}
	if d.Audit != nil {
		errs = append(errs, d.Audit.Close())
	}
	if d.Store != nil {
		errs = append(errs, d.Store.Close())
	}
	if d.Blobs != nil {
		errs = append(errs, d.Blobs.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	return errors.Join(errs...)
}

// openEngine opens the configured engine and refuses a folder written by another engine.
func openEngine(cfg Config) (store.Engine, error) {
	dir := filepath.Join(cfg.Dir, Store)
	name := cfg.Engine
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
	if name == EnginePebble {
		return pebble.Open(dir, pebbleConfig(cfg))
	}
	return nuts.Open(dir, nuts.Config{
		SegmentSize: cfg.Segment, Logger: cfg.Logger, Clock: cfg.Clock, Progress: logProgress(cfg),
		MaxMemory: max(memory.RuntimeLimit(cfg.Memory), 0),
	})
}

// pebbleConfig gives Pebble its share of the memory limit: less on a small machine, its
// own defaults from 384 MiB on.
func pebbleConfig(cfg Config) pebble.Config {
	c := pebble.Config{Logger: cfg.Logger}
	if limit := memory.RuntimeLimit(cfg.Memory); limit > 0 {
		c.CacheSize, c.MemTableSize = max(4<<20, min(limit/12, 32<<20)), max(1<<20, min(limit/48, 8<<20))
	}
	return c
}

// logProgress logs the progress of opening a large store, so that nobody mistakes it for
// a hang (S50).
func logProgress(cfg Config) func(done, total int64) {
	start := cfg.Clock.Mono()
	return func(done, total int64) {
		cfg.Opening(fmt.Sprintf("read %d of %d MiB of the store", done>>20, total>>20))
		if took := cfg.Clock.Mono() - start; took.Seconds() >= 1 {
			cfg.Logger.Info("opening the store", "read_mib", done>>20, "total_mib", total>>20)
		}
	}
}

// A Report is the result of a check or a salvage.
type Report struct {
	Engine      string   `json:"engine"`
	Records     int      `json:"records"`
	MailRecords int      `json:"mail_records"` // of the ledger
	Clean       bool     `json:"clean"`
	Notes       []string `json:"notes,omitempty"`
}

// Check reads the whole store and the ledger of a stopped node without changing anything.
func Check(dir string) (Report, error) {
	lock, err := store.LockDir(dir)
	if err != nil {
		return Report{}, err
	}
	defer lock.Close()
	_, err = os.Lstat(filepath.Join(dir, restoreDone))
	interrupted := err == nil
	at := dir // of the ledger
	if interrupted {
		if at, err = ledgerDuringRestore(dir); err != nil {
			return Report{}, err
		}
	}
	name, err := engineOf(dir)
	if err != nil {
		return Report{}, err
	}
	r, err := checkStore(dir, name)
	if err != nil {
		return Report{}, err
	}
	if interrupted {
		r.Notes = append(r.Notes, "a restore was interrupted before it replaced this store: the next start keeps it; to replace it, run the restore again")
	}
	err = checkLedger(at, &r)
	return r, err
}

func checkStore(dir, engine string) (Report, error) {
	if engine == EnginePebble {
		return checkPebble(dir)
	}
	r, err := nuts.Check(filepath.Join(dir, Store, engine))
	if err != nil {
		return Report{}, err
	}
	return nutsReport(r), nil
}

// Salvage copies every committed record of the store and every batch of the ledger that is
// still readable from the stopped node in cfg.Dir to a new node folder at dst. It completes a
// restore that was interrupted. The copy of a damaged store may have records without their
// changes and deletes: mark marks it.
func Salvage(cfg Config, dst string, mark Marker) (Report, error) {
	cfg = cfg.withDefaults()
	lock, err := store.LockDir(cfg.Dir)
	if err != nil {
		return Report{}, err
	}
	defer lock.Close()
	if err := finishRestore(cfg.Dir); err != nil {
		return Report{}, err
	}
	name, err := engineOf(cfg.Dir)
	if err != nil {
		return Report{}, err
	}
	to := filepath.Join(dst, Store)
	for _, path := range []string{to, filepath.Join(dst, Ledger, ownLedger)} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return Report{}, fmt.Errorf("salvage into %s: %w", path, cmp.Or(err, fs.ErrExist))
		}
	}
	part := filepath.Join(dst, restorePart) // what is not marked yet is no store
	if err := os.RemoveAll(part); err != nil {
		return Report{}, fmt.Errorf("salvage: %w", err)
	}
	r, err := salvageStore(cfg, part, name, mark)
	if err == nil {
		err = salvageLedger(cfg.Dir, dst, &r)
	}
	if err != nil {
		return r, err
	}
	if err := move(to, part); err != nil { // last: a folder with a store is whole
		return r, fmt.Errorf("salvage: %w", err)
	}
	return r, nil
}

// salvageStore copies what is readable to the folder part. A Pebble store is copied as it is,
// if it is not damaged.
func salvageStore(cfg Config, part, engine string, mark Marker) (Report, error) {
	from, to := filepath.Join(cfg.Dir, Store, engine), filepath.Join(part, engine)
	if engine == EnginePebble {
		r, err := checkPebble(cfg.Dir)
		if err != nil {
			return r, fmt.Errorf("salvage supports %s only; restore a damaged %s store from a snapshot: %w", EngineNuts, engine, err)
		}
		if err := store.MarkEngine(part, engine); err != nil {
			return r, err
		}
		return r, copyTree(to, from)
	}
	if err := store.MarkEngine(part, engine); err != nil {
		return Report{}, err
	}
	salvaged, err := nuts.Salvage(from, to)
	if err != nil {
		return Report{}, err
	}
	r := nutsReport(salvaged)
	if _, err := nuts.Check(from); err == nil {
		return r, nil // a start would have lost nothing
	}
	old, err := readReplaced(cfg)
	if err != nil {
		return r, fmt.Errorf("salvage: %w", err)
	}
	cfg.Memory = -1 // the next start reports what does not fit
	m := RestoreReport{Engine: engine}
	if err := errors.Join(m.markRestored(cfg, part, old, mark), old.close()); err != nil {
		return r, fmt.Errorf("salvage: mark the copy of the damaged store: %w", err)
	}
	r.Clean = false
	r.Notes = append(r.Notes, fmt.Sprintf("the new store counts as restored: it may not know what the node did until %s", m.Lost.UTC().Format(time.RFC3339)))
	return r, nil
}

// engineOf returns the engine that wrote the store in dir.
func engineOf(dir string) (string, error) {
	for _, name := range []string{EngineNuts, EnginePebble} {
		if _, err := os.Stat(filepath.Join(dir, Store, name)); err == nil {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w: %s has no store: is it a node's folder?", wire.ErrNotFound, dir)
}
