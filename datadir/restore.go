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
	"slices"
	"time"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/store/pebble"
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
	Mail    int       `json:"mail_records"`    // records of the ledger
	Aside   string    `json:"aside,omitempty"` // path that the old store, with the old ledger and links to the bodies, was moved to
	Lost    time.Time `json:"lost"`            // the node may have acted until then without the copy knowing it
	Revoked []string  `json:"revoked"`         // members whose revocation is missing in the copy; they stay revoked
}

// Replaced is what is known of the store that a copy replaces.
type Replaced struct {
	Meta    *store.Store // its bucket Meta alone, to read; nil: it is damaged, or there is none
	Written time.Time    // time of its newest file, by the clock of the machine; zero: there is none
}

// A Marker marks s, a copy, as restored, in the batch that completes it. What the replaced
// store did until lost may be unknown to the copy. It also returns the members whose
// revocation is missing in the copy.
type Marker func(s *store.Store, old Replaced, b *store.Batch) (lost time.Time, revoked []string, err error)

// Restore replaces the store and the ledger of the stopped node in cfg.Dir with a copy of
// snapshot; private is the key of a sealed snapshot. The copy is checked first, and mark
// marks it. The old store and ledger are moved aside, with links to the bodies, nothing is
// deleted. A crash in between leaves either the old ones or the complete new ones. After a
// snapshot without a ledger there is none.
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
	r := RestoreReport{Engine: name}
	old, err := readReplaced(cfg)
	if err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	defer func() { err = errors.Join(err, old.close()) }()
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
	if r.Mail, err = restoreLedger(part, name); err != nil {
		return r, fmt.Errorf("restore: the copy of %s: %w", snapshot, err)
	}
	if err = r.markRestored(cfg, part, old, mark); err != nil {
		return r, fmt.Errorf("restore: the copy of %s: %w", snapshot, err)
	}
	r.Aside, err = swapStore(cfg.Dir, cfg.Clock.Now())
	return r, err
}

// restoreLedger moves the ledger out of the store of the copy in part, and checks it. There
// is always a folder for it, so that the old ledger is set aside.
func restoreLedger(part, engine string) (records int, err error) {
	to := filepath.Join(part, Ledger)
	from := filepath.Join(part, engine, Ledger)
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		if err := os.Mkdir(to, 0o700); err != nil {
			return 0, err
		}
		return 0, disk.SyncDir(part)
	}
	if err := move(to, from); err != nil {
		return 0, err
	}
	path, ok := ledgerOf(part)
	if !ok {
		return 0, nil
	}
	r, err := ledger.Check(path)
	if err == nil && len(r.Damage) > 0 {
		err = r.Damage[0]
	}
	return r.Entries, err
}

// finishRestore completes a restore that was interrupted after the old store was set aside,
// and undoes one that was interrupted before.
func finishRestore(dir string) error {
	whole, at := filepath.Join(dir, restoreDone), filepath.Join(dir, Store)
	if _, err := os.Lstat(whole); err != nil {
		return nil
	}
	_, err := os.Lstat(at)
	switch {
	case err == nil: // it is used, with its ledger
		err = errors.Join(moveIfThere(filepath.Join(dir, Ledger), filepath.Join(at, Ledger)), os.RemoveAll(filepath.Join(at, Blob)))
	case errors.Is(err, fs.ErrNotExist):
		if err = moveIfThere(filepath.Join(dir, Ledger), filepath.Join(whole, Ledger)); err == nil {
			err = move(at, whole)
		}
	}
	if err != nil {
		return fmt.Errorf("complete the interrupted restore: %w", err)
	}
	return nil
}

// ledgerDuringRestore returns the folder that holds the folder of the ledger of the store that
// is in its place, although a restore was interrupted.
func ledgerDuringRestore(dir string) (string, error) {
	at := filepath.Join(dir, Store)
	if _, err := os.Lstat(at); err != nil {
		return "", fmt.Errorf("%w: a restore was interrupted when it had moved the old store aside: start the node, or run the restore again: either completes it", wire.ErrInvalid)
	}
	if _, err := os.Lstat(filepath.Join(at, Ledger)); err == nil {
		return at, nil
	}
	return dir, nil
}

// removeUnfinished removes what a snapshot, a restore or a migration left that was killed.
// The folder is locked, so nobody is making one, and there is nothing in it that is not
// elsewhere too.
func removeUnfinished(cfg Config) {
	snapshot := filepath.Join(cfg.Dir, snapshotPart)
	for _, path := range []string{snapshot, snapshot + ".part", filepath.Join(cfg.Dir, restorePart), filepath.Join(cfg.Dir, restoreDone)} {
		if err := os.RemoveAll(path); err != nil {
			cfg.Logger.Warn("cannot remove an unfinished copy of the store", "path", path, "err", err)
		}
	}
}

// move renames a file or folder durably.
func move(to, from string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return errors.Join(disk.SyncDir(filepath.Dir(to)), disk.SyncDir(filepath.Dir(from)))
}

func moveIfThere(to, from string) error {
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return move(to, from)
}

// keepBodies links the bodies of the node into the folder of its store, if there is one, before
// that is moved aside: the next start removes those that the copy does not name. Where a file
// cannot have a second name it is copied.
func keepBodies(dir string) error {
	from, to := filepath.Join(dir, Blob), filepath.Join(dir, Store, Blob)
	files, err := os.ReadDir(from)
	if _, unused := engineOf(dir); unused != nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.MkdirAll(to, 0o700)
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if !f.Type().IsRegular() {
			continue
		}
		src, dst := filepath.Join(from, f.Name()), filepath.Join(to, f.Name())
		if os.Link(src, dst) == nil {
			continue
		}
		if err := copyFile(dst, src); err != nil {
			return fmt.Errorf("keep the bodies of the old store: %w", err)
		}
	}
	return errors.Join(disk.SyncDir(to), disk.SyncDir(filepath.Dir(to)))
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

// readReplaced reads what is known of the store that is replaced.
func readReplaced(cfg Config) (r Replaced, err error) {
	r.Written = lastWrite(filepath.Join(cfg.Dir, Store)) // before it is opened
	e := mem.New()
	if err := copyMeta(cfg, e); err != nil {
		return r, e.Close() // why it is replaced
	}
	r.Meta, err = store.Open(e, store.Config{Clock: cfg.Clock})
	return r, err
}

func (r Replaced) close() error {
	if r.Meta == nil {
		return nil
	}
	return r.Meta.Close()
}

// copyMeta copies the bucket Meta of the node's store.
func copyMeta(cfg Config, dst store.Engine) (err error) {
	name, err := engineOf(cfg.Dir)
	if err != nil {
		return err
	}
	dir := filepath.Join(cfg.Dir, Store, name)
	if name == EngineNuts {
		return nuts.Export(dir, func(_, _ int64) {}, func(ops []store.Op) error {
			return dst.Commit(slices.DeleteFunc(ops, func(op store.Op) bool { return op.Bucket != store.Meta }))
		})
	}
	read := pebbleConfig(cfg)
	read.ReadOnly = true // it is moved aside as it is
	src, err := pebble.Open(dir, read)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	return eachPage(src, []store.Bucket{store.Meta}, func(b store.Bucket, page []store.Pair) error {
		for _, p := range page {
			if err := dst.Commit([]store.Op{{Bucket: b, Key: p.Key, Val: p.Val}}); err != nil {
				return err
			}
		}
		return nil
	})
}

// lastWrite returns the time of the newest file of a store, zero if there is none.
func lastWrite(root string) (last time.Time) {
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
	if err != nil {
		return time.Time{}
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

// markRestored opens the copy in part, reads all of it and marks it as restored.
func (r *RestoreReport) markRestored(cfg Config, part string, old Replaced, mark Marker) (err error) {
	e, err := openEngineIn(part, r.Engine, cfg)
	if err != nil {
		return err
	}
	s, err := store.Open(e, storeConfig(cfg))
	if err != nil {
		return errors.Join(err, e.Close())
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, b := range store.Buckets() {
		for _, err := range s.All(b, nil, nil) {
			if err != nil {
				return err
			}
			r.Records++
		}
	}
	var b store.Batch
	if r.Lost, r.Revoked, err = mark(s, old, &b); err != nil {
		return err
	}
	return s.Apply(context.Background(), &b)
}

// swapStore moves the store of the node aside and the complete copy into its place, and the
// ledgers likewise if the copy has a folder for one.
func swapStore(dir string, now time.Time) (aside string, err error) {
	aside = filepath.Join(dir, now.UTC().Format(asideFormat))
	_, there := os.Lstat(aside)
	if !errors.Is(there, fs.ErrNotExist) {
		return "", fmt.Errorf("restore: %w", cmp.Or(there, fmt.Errorf("%s already exists: try again in a second", aside)))
	}
	for _, step := range swapSteps(dir, aside) {
		if err := step(); err != nil {
			return "", fmt.Errorf("restore: %w", err)
		}
	}
	return aside, nil
}

// swapSteps are the steps of swapStore. After the first one the copy is complete; once the
// old store, with its ledger and bodies in it, has left its place, the copy is used.
func swapSteps(dir, aside string) []func() error {
	part, whole, at, ledger := filepath.Join(dir, restorePart), filepath.Join(dir, restoreDone), filepath.Join(dir, Store), filepath.Join(dir, Ledger)
	_, err := os.Lstat(filepath.Join(part, Ledger))
	hasLedger := err == nil
	return []func() error{
		func() error { return move(whole, part) },
		func() error {
			if !hasLedger {
				return nil
			}
			return moveIfThere(filepath.Join(at, Ledger), ledger)
		},
		func() error { return keepBodies(dir) },
		func() error { return move(aside, at) },
		func() error { return moveIfThere(ledger, filepath.Join(whole, Ledger)) },
		func() error { return move(at, whole) },
	}
}
