package nuts

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/balefire/balefire/store"
)

// A generation is one NutsDB folder. A store has one that counts; compaction
// makes the next.
type generation struct {
	name
	dir  string
	raw  *raw
	mark *mark
	pos  position // end of the log; written under DB.mu
}

// A name is what CURRENT says: which generation, and how large its segments are.
type name struct {
	num     int
	segment int64
}

const (
	currentFile   = "CURRENT"
	quarantineDir = "quarantine"
	genPrefix     = "gen-"
)

func genDir(dir string, num int) string {
	return filepath.Join(dir, fmt.Sprintf("%s%06d", genPrefix, num))
}

// String returns the text of CURRENT: "gen-000007 67108864 " and a checksum.
func (n name) String() string {
	text := fmt.Sprintf("%s%06d %d", genPrefix, n.num, n.segment)
	return fmt.Sprintf("%s %08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

// parseName reads the text of CURRENT.
func parseName(text string) (name, error) {
	var n name
	_, err := fmt.Sscanf(text, genPrefix+"%d %d ", &n.num, &n.segment)
	if err != nil || n.num < 1 || n.segment < 1 || n.String() != text {
		return name{}, fmt.Errorf("%w: %s says %q instead of a generation and its segment size; "+
			"run `balefire-node store salvage` to read the newest one", store.ErrCorrupt, currentFile, text)
	}
	return n, nil
}

// readCurrent returns the generation that counts; ok is false when there is none.
func readCurrent(dir string) (n name, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, currentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return name{}, false, nil
	}
	if err != nil {
		return name{}, false, err
	}
	n, err = parseName(string(b))
	return n, err == nil, err
}

// setCurrent makes n the generation that counts. After an error it may or may
// not count after a power cut.
func setCurrent(dir string, n name) error {
	tmp := filepath.Join(dir, currentFile+".tmp")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(n.String())
	if err == nil {
		err = f.Sync()
	}
	if err := cmp.Or(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, currentFile)); err != nil {
		return err
	}
	return syncDir(dir)
}

// openCurrent opens the generation that counts, or makes the first.
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

// checkEmpty makes sure that a folder without CURRENT holds no store: neither
// one that lost this file nor one of another engine.
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
				if n, err := scavenge(path, 0, func(int64, entry, []byte) error { return nil }); err != nil || n > 0 {
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

// newStore makes the first generation. Until CURRENT is written there is no
// store, so that an interrupted birth begins anew.
func newStore(dir string, cfg Config) (*generation, error) {
	g, err := newGeneration(dir, name{1, cfg.SegmentSize})
	if err != nil {
		return nil, err
	}
	cfg.at("birth: first generation made")
	err = syncDir(filepath.Dir(dir))
	if err == nil {
		err = setCurrent(dir, g.name)
	}
	if err != nil {
		return nil, errors.Join(err, g.close(false))
	}
	return g, nil
}

// newGeneration makes an empty generation and brings everything of it to disk.
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
		func() error { return syncDir(g.dir) },
		func() error { return syncDir(dir) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("make generation %d: %w", n.num, err), g.close(false), os.RemoveAll(g.dir))
		}
	}
	return g, nil
}

// openGeneration opens an existing generation, behind the guard.
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

// A guarded is what the guard let pass.
type guarded struct {
	last  position // end of the log
	bytes int64    // size of the log's files
}

// guard surveys the log, cuts off a torn tail and brings what it read to disk:
// after a kill that may still be in the page cache only. It holds NutsDB's lock
// meanwhile, because what looks torn in a store in use is a commit under way.
func guard(dir string, n name, cfg Config) (guarded, error) {
	gen := genDir(dir, n.num)
	if _, err := os.Stat(gen); errors.Is(err, fs.ErrNotExist) {
		return guarded{}, fmt.Errorf("%w: CURRENT names %s, which is missing", store.ErrCorrupt, filepath.Base(gen))
	}
	lock := flock.New(filepath.Join(gen, lockFile))
	if ok, err := lock.TryLock(); err != nil {
		return guarded{}, fmt.Errorf("lock %s: %w", gen, err)
	} else if !ok {
		return guarded{}, lockedError(gen)
	}
	defer lock.Close()
	if now, _, err := readCurrent(dir); err != nil || now != n {
		return guarded{}, cmp.Or(err, lockedError(dir)) // another process compacted it just now
	}
	if err := checkBucketFile(gen); err != nil {
		return guarded{}, err
	}
	s, err := surveyAll(gen, n.segment, cfg.Progress)
	if err != nil {
		return guarded{}, err
	}
	if !s.clean() {
		cfg.at("guard: before the repair")
		if err := s.repair(filepath.Join(dir, quarantineDir), cfg.Logger); err != nil {
			return guarded{}, err
		}
		cfg.at("guard: after the repair")
		if s, err = surveyAll(gen, n.segment, cfg.Progress); err != nil {
			return guarded{}, err
		}
	}
	if !s.clean() {
		return guarded{}, fmt.Errorf("%w: %s is still torn after its repair", store.ErrCorrupt, gen)
	}
	if err := syncFile(segmentPath(gen, s.last.segment)); err != nil {
		return guarded{}, err
	}
	return guarded{s.last, s.bytes()}, syncDir(gen)
}

// surveyAll surveys the log in gen and returns an error when acknowledged data
// is lost.
func surveyAll(gen string, segSize int64, progress func(done, total int64)) (*survey, error) {
	segs, err := listSegments(gen)
	if err != nil {
		return nil, err
	}
	total := sumSizes(segs)
	s, err := surveyLog(gen, segSize, func(done int64) { progress(done, 2*total) })
	if err != nil {
		return nil, err
	}
	acked, known, err := readMark(gen)
	if err != nil {
		return nil, err
	}
	return s, s.verdict(acked, known)
}

// heartbeat calls progress every second until the returned function is called:
// NutsDB says nothing while it reads the log again.
func heartbeat(progress func(done, total int64), bytes int64) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				progress(bytes, 2*bytes)
			}
		}
	}()
	return func() { close(quit); <-done }
}

// removeOthers removes what an interrupted compaction left.
func removeOthers(dir string, keep int) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), genPrefix) && f.Name() != filepath.Base(genDir(dir, keep)) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
		}
	}
	return err
}

// startMark opens the mark, brings it up to the end of the log and to disk.
func (g *generation) startMark() (err error) {
	if g.mark, err = openMark(g.dir); err != nil {
		return err
	}
	if err := g.mark.set(g.pos); err != nil {
		return err
	}
	return g.mark.sync()
}

// commit makes ops durable and notes how far the log is acknowledged now.
func (g *generation) commit(ops []store.Op) error {
	if err := g.raw.commit(ops, false); err != nil {
		return err
	}
	return g.advance()
}

// advance takes over the log's end after a transaction.
func (g *generation) advance() error {
	pos := g.raw.position()
	if pos == g.pos {
		return nil
	}
	if pos.segment != g.pos.segment { // NutsDB fsyncs the new file, not its name
		if err := syncDir(g.dir); err != nil {
			return err
		}
	}
	g.pos = pos
	return g.mark.set(pos)
}

// bytes returns the size of the log.
func (g *generation) bytes() int64 { return g.pos.segment*g.segment + g.pos.off }

// close releases the files; with sync it brings the mark to disk before. It
// also closes a generation that was only half opened.
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

// syncDir brings the names in dir to disk. Windows has no such call and writes
// them through its journal.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	return cmp.Or(err, f.Close())
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = f.Sync()
	return cmp.Or(err, f.Close())
}
