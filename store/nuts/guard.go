package nuts

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/store"
)

// guarded describes a log that passed the guard.
type guarded struct {
	last  position // end of the log
	bytes int64    // size of the log's files
}

// guard surveys the log, cuts off a torn tail and makes the log durable, which after a kill may
// be only in the page cache. It holds NutsDB's lock meanwhile, because in a store in use
// a commit in progress looks like a torn tail.
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
	if err := s.weigher.fits(cfg.MaxMemory); err != nil {
		return guarded{}, err
	}
	if err := s.persist(); err != nil {
		return guarded{}, err
	}
	return guarded{s.last, s.bytes()}, disk.SyncDir(gen)
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
	return s, s.judge()
}

// persist makes the log durable. What was not acknowledged is written again: its sync may have failed.
func (s *survey) persist() error {
	from := s.last
	if s.known && s.acked.compare(s.last) < 0 {
		from = s.acked
	}
	for _, seg := range s.segments[from.segment : s.last.segment+1] {
		begin, end := int64(0), seg.size
		if seg.num == from.segment {
			begin = from.off
		}
		if seg.num == s.last.segment {
			end = s.last.off
		}
		if err := rewriteFile(segmentPath(s.dir, seg.num), begin, end); err != nil {
			return err
		}
	}
	return nil
}

func rewriteFile(path string, from, to int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = cmp.Or(disk.Rewrite(f, from, to), f.Sync())
	return cmp.Or(err, f.Close())
}

// heartbeat calls progress every second until the returned function is called:
// NutsDB reports no progress while it reads the log again.
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
