package nuts

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/store"
)

// A generation is one NutsDB folder. A store has one current generation; compaction
// creates the next.
type generation struct {
	name
	dir    string
	raw    *raw
	mark   *mark
	pos    position // end of the log; written under DB.mu
	copies int      // snapshots that copy its files, under DB.mu; a compaction then leaves it to the last of them
}

const (
	currentFile   = "CURRENT"
	quarantineDir = "quarantine"
	genPrefix     = "gen-"
)

// openCurrent opens the current generation, or creates the first.
func openCurrent(dir string, cfg Config) (*generation, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	n, ok, err := readCurrent(dir)
	if err != nil {
		return nil, err
	}
	if !ok {
		if err := checkEmpty(dir); err != nil {
			return nil, err
		}
		return newStore(dir, cfg)
	}
	g, err := openGeneration(dir, n, cfg)
	if err != nil {
		return nil, err
	}
	if err := removeOthers(dir, n.num); err != nil {
		cfg.Logger.Warn("store: could not remove what an interrupted compaction left", "err", err)
	}
	return g, nil
}

// checkEmpty checks that a folder without CURRENT contains no store: neither one that
// lost this file nor one of another engine.
func checkEmpty(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		switch {
		case strings.HasPrefix(f.Name(), genPrefix):
			segs, err := listSegments(filepath.Join(dir, f.Name()))
			if err != nil {
				return err
			}
			for _, seg := range segs {
				path := segmentPath(filepath.Join(dir, f.Name()), seg.num)
				if n, err := scanDamaged(path, 0, func(int64, entry, []byte) error { return nil }); err != nil || n > 0 {
					return cmp.Or(err, fmt.Errorf("%w: %s is missing but %s holds records: restore that file or run `balefire-node store salvage`",
						store.ErrCorrupt, filepath.Join(dir, currentFile), f.Name()))
				}
			}
		case strings.HasPrefix(f.Name(), "MANIFEST-"), strings.HasPrefix(f.Name(), "OPTIONS-"),
			strings.HasPrefix(f.Name(), "marker."), strings.HasSuffix(f.Name(), ".sst"):
			return fmt.Errorf("%w: %s holds %s of a Pebble store: set the store engine to pebble, or use an empty folder", store.ErrOtherEngine, dir, f.Name())
		}
	}
	return nil
}

// newStore creates the first generation. Until CURRENT is written there is no
// store, so that an interrupted creation starts over.
func newStore(dir string, cfg Config) (*generation, error) {
	g, err := newGeneration(dir, name{1, cfg.SegmentSize})
	if err != nil {
		return nil, err
	}
	cfg.at("create: first generation made")
	err = disk.SyncDir(filepath.Dir(dir))
	if err == nil {
		err = setCurrent(dir, g.name)
	}
	if err != nil {
		return nil, errors.Join(err, g.close(false))
	}
	return g, nil
}

// newGeneration creates an empty generation and syncs it.
func newGeneration(dir string, n name) (*generation, error) {
	g := &generation{name: n, dir: genDir(dir, n.num)}
	if err := os.RemoveAll(g.dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() (err error) { g.raw, err = openRaw(g.dir, n.segment); return err },
		func() error { return g.raw.createBuckets() },
		func() error { return checkBucketFile(g.dir) },
		func() error { return syncFile(filepath.Join(g.dir, bucketFile)) },
		func() error { return syncFile(segmentPath(g.dir, 0)) },
		g.startMark,
		func() error { return disk.SyncDir(g.dir) },
		func() error { return disk.SyncDir(dir) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("make generation %d: %w", n.num, err), g.close(false), os.RemoveAll(g.dir))
		}
	}
	return g, nil
}

// openGeneration opens an existing generation after the guard has passed it.
func openGeneration(dir string, n name, cfg Config) (*generation, error) {
	g := &generation{name: n, dir: genDir(dir, n.num)}
	end, err := guard(dir, n, cfg)
	if err != nil {
		return nil, err
	}
	stop := heartbeat(cfg.Progress, end.bytes)
	g.raw, err = openRaw(g.dir, n.segment)
	stop()
	if err != nil {
		return nil, err
	}
	g.pos = g.raw.position()
	if g.pos != end.last {
		err = fmt.Errorf("%w: NutsDB reads %s up to %v, the guard up to %v", store.ErrCorrupt, g.dir, g.pos, end.last)
		return nil, errors.Join(err, g.close(false))
	}
	if err = g.raw.warm(); err == nil {
		err = g.startMark()
	}
	if err != nil {
		return nil, errors.Join(err, g.close(false))
	}
	cfg.Progress(2*end.bytes, 2*end.bytes)
	return g, nil
}

// removeOthers removes the remains of an interrupted compaction.
func removeOthers(dir string, keep int) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), genPrefix) && f.Name() != filepath.Base(genDir(dir, keep)) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
		}
	}
	return err
}

// startMark opens the mark, sets it to the end of the log and syncs it.
func (g *generation) startMark() (err error) {
	if g.mark, err = openMark(g.dir); err != nil {
		return err
	}
	if err := g.mark.set(g.pos); err != nil {
		return err
	}
	return g.mark.sync()
}

// commit makes ops durable and records how far the log is acknowledged.
func (g *generation) commit(ops []store.Op) error {
	if err := g.raw.commit(ops); err != nil {
		return err
	}
	return g.advance()
}

// advance records the end of the log after a transaction.
func (g *generation) advance() error {
	pos := g.raw.position()
	if pos == g.pos {
		return nil
	}
	if pos.segment != g.pos.segment { // NutsDB fsyncs the new file, not its name
		if err := disk.SyncDir(g.dir); err != nil {
			return err
		}
	}
	g.pos = pos
	return g.mark.set(pos)
}

// bytes returns the size of the log.
func (g *generation) bytes() int64 { return g.pos.segment*g.segment + g.pos.off }

// close releases the files; with sync it first syncs the mark. It also closes a partly
// opened generation.
func (g *generation) close(sync bool) error {
	var err error
	if g.mark != nil {
		if sync {
			err = g.mark.sync()
		}
		err = errors.Join(err, g.mark.close())
	}
	if g.raw != nil {
		err = errors.Join(err, g.raw.close())
	}
	return err
}

func (s *survey) bytes() int64 { return sumSizes(s.segments) }

func sumSizes(segs []segment) (n int64) {
	for _, seg := range segs {
		n += seg.size
	}
	return n
}
