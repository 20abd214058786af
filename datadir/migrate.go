package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/memory"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/store/pebble"
	"github.com/balefire/balefire/wire"
)

// A MigrateReport is the result of a migration.
type MigrateReport struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Records int    `json:"records"`
	Aside   string `json:"aside" doc:"path that the store of the old engine was moved to"`
}

// Migrate copies the store of the stopped node in cfg.Dir to the engine named by to
// and puts the copy in its place; the old store is moved aside. A NutsDB store is read
// from its log, so that memory use does not grow with the size of the store. A crash in
// between leaves either the old store or the complete new one.
func Migrate(cfg Config, to string) (_ MigrateReport, err error) {
	if to != EngineNuts && to != EnginePebble {
		return MigrateReport{}, fmt.Errorf("%w: store engine %.40q: must be %s or %s", wire.ErrInvalid, to, EngineNuts, EnginePebble)
	}
	memory.TuneRuntime(cfg.Memory)
	cfg = cfg.withDefaults()
	lock, err := store.LockDir(cfg.Dir)
	if err != nil {
		return MigrateReport{}, err
	}
	defer lock.Close()
	if err := finishRestore(cfg.Dir); err != nil {
		return MigrateReport{}, err
	}
	from, err := engineOf(cfg.Dir)
	if err != nil {
		return MigrateReport{}, err
	}
	r := MigrateReport{From: from, To: to}
	if to == from {
		return r, fmt.Errorf("%w: the store already uses %s", wire.ErrInvalid, to)
	}
	part := filepath.Join(cfg.Dir, restorePart)
	if err := errors.Join(os.RemoveAll(part), os.RemoveAll(filepath.Join(cfg.Dir, restoreDone))); err != nil {
		return r, fmt.Errorf("migrate: %w", err)
	}
	if err := store.MarkEngine(part, to); err != nil {
		return r, err
	}
	if r.Records, err = copyEngine(cfg, from, to); err != nil {
		return r, fmt.Errorf("migrate: %w", errors.Join(err, os.RemoveAll(part)))
	}
	r.Aside, err = swapStore(cfg.Dir, cfg.Clock.Now())
	return r, err
}

// copyEngine copies every record of the node's store to a new engine in the folder of
// the copy, and returns the number of records.
func copyEngine(cfg Config, from, to string) (records int, err error) {
	src := filepath.Join(cfg.Dir, Store, from)
	dst, err := openEngineIn(filepath.Join(cfg.Dir, restorePart), to, cfg)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if from == EngineNuts {
		err = nuts.Export(src, logProgress(cfg), dst.Commit)
	} else {
		err = copyPebble(cfg, src, dst)
	}
	if err != nil {
		return 0, err
	}
	return countRecords(dst)
}

// copyPebble copies page by page and fails if the copy does not fit in memory.
func copyPebble(cfg Config, dir string, dst store.Engine) (err error) {
	src, err := pebble.Open(dir, pebbleConfig(cfg))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	needed, limit := int64(0), max(memory.RuntimeLimit(cfg.Memory), 0)
	return eachPage(src, store.Buckets(), func(b store.Bucket, page []store.Pair) error {
		ops := make([]store.Op, len(page))
		for i, p := range page {
			ops[i] = store.Op{Bucket: b, Key: p.Key, Val: p.Val}
			needed += nuts.MemoryOf(len(p.Key), len(p.Val))
		}
		if limit > 0 && needed > limit {
			return fmt.Errorf("%w: NutsDB keeps every record in memory, and these need more than the %d MiB that the node may use: keep pebble or raise limits.memory_limit", store.ErrNeedsMemory, limit>>20)
		}
		return dst.Commit(ops)
	})
}

// pageRecords is the number of records copied in one commit.
const pageRecords = 256

// eachPage calls fn with all records of e in the buckets, one page at a time.
func eachPage(e store.Engine, buckets []store.Bucket, fn func(store.Bucket, []store.Pair) error) error {
	for _, b := range buckets {
		for start := []byte(nil); ; {
			page, err := e.Scan(b, start, nil, pageRecords)
			if err != nil {
				return err
			}
			if len(page) > 0 {
				if err := fn(b, page); err != nil {
					return err
				}
				start = append(page[len(page)-1].Key, 0)
			}
			if len(page) < pageRecords {
				break
			}
		}
	}
	return nil
}

func countRecords(e store.Engine) (n int, err error) {
	err = eachPage(e, store.Buckets(), func(_ store.Bucket, page []store.Pair) error {
		n += len(page)
		return nil
	})
	return n, err
}
