package datadir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/wire"
)

// The folders of a restore, next to the store. The copy gets the second name once it is
// complete: a node that finds it and has no store uses it.
const (
	restorePart = "store.part"
	restoreDone = "store.restored"
	asideFormat = "store.before-20060102T150405Z"
)

// A RestoreReport is the result of a restore.
type RestoreReport struct {
	Engine  string    `json:"engine"`
	Records int       `json:"records"`
	Aside   string    `json:"aside,omitempty"` // path that the old store was moved to
	Lost    time.Time `json:"lost"`            // the node may have acted until then without the copy knowing it
	Revoked []string  `json:"revoked"`         // members whose revocation is missing in the copy; they stay revoked
}

// A Marker marks a copy as restored, in the batch that completes it. What the replaced
// store did until lost may be unknown to the copy. It returns the members whose revocation
// is missing in the copy.
type Marker func(s *store.Store, b *store.Batch, lost time.Time) (revoked []string, err error)

// Restore replaces the store of the stopped node in cfg.Dir with a copy of snapshot;
// private is the key of a sealed snapshot. The copy is checked first, and mark marks it.
// The old store is moved aside, nothing is deleted. A crash in between leaves either the
// old store or the complete new one.
func Restore(cfg Config, snapshot, private string, mark Marker) (_ RestoreReport, err error) {
	cfg = cfg.withDefaults()
	lock, err := store.LockDir(cfg.Dir)
	if err != nil {
		return RestoreReport{}, err
	}
	defer lock.Close()
	if err := finishRestore(cfg.Dir); err != nil {
		return RestoreReport{}, err
	}
	snapshot, drop, err := openSnapshot(cfg, snapshot, private)
	if err != nil {
		return RestoreReport{}, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	name, err := engineOfSnapshot(snapshot)
	if err != nil {
		return RestoreReport{}, err
	}
	if err := store.MarkEngine(filepath.Join(cfg.Dir, Store), name); err != nil {
		return RestoreReport{}, err
	}
	r := RestoreReport{Engine: name, Lost: lastWrite(cfg)}
	part := filepath.Join(cfg.Dir, restorePart)
	// Copies of an interrupted restore; the snapshot still exists.
	if err := errors.Join(os.RemoveAll(part), os.RemoveAll(filepath.Join(cfg.Dir, restoreDone))); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	if err := store.MarkEngine(part, name); err != nil {
		return r, err
	}
	if err := copyTree(filepath.Join(part, name), snapshot); err != nil {
		return r, fmt.Errorf("restore: copy %s: %w", snapshot, err)
	}
	if r.Records, r.Revoked, err = markRestored(cfg, part, name, r.Lost, mark); err != nil {
		return r, fmt.Errorf("restore: the copy of %s: %w", snapshot, err)
	}
	r.Aside, err = swapStore(cfg.Dir, cfg.Clock.Now())
	return r, err
}

// finishRestore completes a restore that was interrupted after the copy was complete.
func finishRestore(dir string) error {
	whole, at := filepath.Join(dir, restoreDone), filepath.Join(dir, Store)
	if _, err := os.Lstat(whole); err != nil {
		return nil
	}
	if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		return err // the old store is still in place and is used
	}
	if err := os.Rename(whole, at); err != nil {
		return fmt.Errorf("complete the interrupted restore: %w", err)
	}
	return disk.SyncDir(dir)
}

// engineOfSnapshot returns the engine that wrote a snapshot, judging by its files.
func engineOfSnapshot(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, "CURRENT")); err == nil {
		if _, err := nuts.Check(dir); err != nil {
			return "", fmt.Errorf("restore: %w", err)
		}
		return EngineNuts, nil
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "MANIFEST-*")); len(found) > 0 {
		return EnginePebble, nil
	}
	return "", fmt.Errorf("%w: %s is not a snapshot of a store: name the folder that store snapshot wrote", wire.ErrInvalid, dir)
}

// lastWrite returns the latest time at which the store being replaced may have been
// written: the time of its newest file, or now.
func lastWrite(cfg Config) time.Time {
	var last time.Time
	root := filepath.Join(cfg.Dir, Store)
	mark := filepath.Join(root, engineFile)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path == mark {
			return err
		}
		info, err := d.Info()
		if err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
		return err
	})
	if err != nil || last.IsZero() {
		return cfg.Clock.Now()
	}
	return last
}

// copyTree durably copies the regular files below src to dst, which must not exist.
func copyTree(dst, src string) error {
	return filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		at := filepath.Join(dst, rel)
		switch {
		case d.IsDir():
			if err := os.MkdirAll(at, 0o700); err != nil {
				return err
			}
			return disk.SyncDir(filepath.Dir(at))
		case !d.Type().IsRegular():
			return fmt.Errorf("%w: %s is not a regular file", wire.ErrInvalid, path)
		}
		if err := copyFile(at, path); err != nil {
			return err
		}
		return disk.SyncDir(filepath.Dir(at))
	})
}

func copyFile(dst, src string) error {
	from, err := os.Open(src)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Sync(), to.Close())
}

// markRestored opens the copy, reads all of it and marks it as restored.
func markRestored(cfg Config, part, engine string, lost time.Time, mark Marker) (records int, revoked []string, err error) {
	e, err := openEngineIn(part, engine, cfg)
	if err != nil {
		return 0, nil, err
	}
	s, err := store.Open(e, storeConfig(cfg))
	if err != nil {
		return 0, nil, errors.Join(err, e.Close())
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, b := range store.Buckets() {
		for _, err := range s.All(b, nil, nil) {
			if err != nil {
				return records, nil, err
			}
			records++
		}
	}
	var b store.Batch
	if revoked, err = mark(s, &b, lost); err != nil {
		return records, nil, err
	}
	return records, revoked, s.Apply(context.Background(), &b)
}

// swapStore moves the store of the node aside and the complete copy into its place.
func swapStore(dir string, now time.Time) (aside string, err error) {
	whole, at := filepath.Join(dir, restoreDone), filepath.Join(dir, Store)
	aside = filepath.Join(dir, now.UTC().Format(asideFormat))
	_, there := os.Lstat(aside)
	if !errors.Is(there, fs.ErrNotExist) {
		return "", fmt.Errorf("restore: %w", cmp.Or(there, fmt.Errorf("%s already exists: try again in a second", aside)))
	}
	for _, step := range [][2]string{{filepath.Join(dir, restorePart), whole}, {at, aside}, {whole, at}} {
		if err := os.Rename(step[0], step[1]); err != nil {
			return "", fmt.Errorf("restore: %w", err)
		}
		if err := disk.SyncDir(dir); err != nil {
			return "", fmt.Errorf("restore: %w", err)
		}
	}
	return aside, nil
}
