package bodies

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
)

// Records say which bodies are needed.
type Records interface {
	// Mark calls refer for each body that a record refers to, with the origin that is
	// charged for it, zero for this node itself. It may take long: nothing waits for it.
	Mark(refer func(name string, origin proto.PeerID)) error
	// Awaits reports whether the rest of a part for a task is still awaited.
	Awaits(proto.TaskID) bool
}

const (
	grace      = time.Hour        // a received object waits this long for its record, and a part for progress
	sweepEvery = 10 * time.Minute // interval between two sweeps if no record ended
	sweepPause = time.Second      // and at least this after one has
	sweepShare = 20               // at most one part in this many of the time is spent on sweeps
)

// Run sweeps now and then, and soon after records have ended, until ctx is done. report is
// told what came of each.
func (s *Store) Run(ctx context.Context, records Records, report func(removed int, err error)) error {
	pause := sweepPause
	t := time.NewTimer(sweepEvery)
	defer t.Stop()
	dropped := s.dropped
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-dropped:
			t.Reset(pause)
			dropped = nil // until the sweep
			continue
		case <-t.C:
		}
		from := s.cfg.Clock.Mono()
		removed, err := s.Sweep(ctx, records)
		if ctx.Err() != nil {
			return nil
		}
		report(removed, err)
		pause = max(sweepPause, sweepShare*(s.cfg.Clock.Mono()-from))
		dropped = s.dropped
		t.Reset(sweepEvery)
	}
}

// Sweep removes the files that no record refers to, and returns how many. It spares what
// is pinned or being written, what was written or released since it began to ask, what was
// received within grace, and parts whose sender may still send the rest. One sweep runs at
// a time.
func (s *Store) Sweep(ctx context.Context, records Records) (removed int, err error) {
	s.mu.Lock()
	if s.usage.Blobs+s.usage.Parts == 0 {
		s.mu.Unlock()
		return 0, nil
	}
	if s.fresh != nil {
		s.mu.Unlock()
		return 0, ErrBusy
	}
	s.fresh = map[string]bool{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fresh = nil
	}()

	found := map[string]*use{} // by path; what is written from now on is fresh
	err = s.each(func(path string, _ fs.DirEntry) error {
		found[path] = new(use)
		return ctx.Err()
	})
	if err != nil {
		return 0, fmt.Errorf("sweep bodies: %w", err)
	}
	err = records.Mark(func(name string, origin proto.PeerID) {
		for _, path := range [...]string{name, name + partSuffix} {
			if u := found[path]; u != nil {
				u.marked = true
				u.origins = append(u.origins, origin)
			}
		}
	})
	if err != nil {
		return 0, fmt.Errorf("mark bodies: %w", err)
	}
	var errs []error
	now := charges{}
	for path, u := range found {
		if strings.HasSuffix(path, partSuffix) {
			s.readPart(path, u, records)
		}
		gone, err := s.sweep(path, u, now)
		if err != nil {
			errs = append(errs, err)
		}
		if gone {
			removed++
		}
		if ctx.Err() != nil {
			return removed, errors.Join(append(errs, ctx.Err())...)
		}
	}
	s.settle(now)
	return removed, errors.Join(errs...)
}

// A use is what the records say about a file.
type use struct {
	marked  bool
	awaited bool // the rest of a part may still come
	origins []proto.PeerID
	size    int64 // of the whole object, for a part
}

// sweep removes a file unless it is used, or spared. Otherwise it adds to now who refers
// to it.
func (s *Store) sweep(path string, u *use, now charges) (gone bool, err error) {
	name, part := strings.CutSuffix(path, partSuffix)
	s.mu.Lock()
	defer s.mu.Unlock()
	size, err := s.stat(name, path)
	if errors.Is(err, ErrNotFound) {
		return false, nil // removed or completed meanwhile
	}
	if err != nil {
		return false, err
	}
	if u.marked && !part {
		delete(s.held, name)
	}
	if !u.marked && !u.awaited && !s.spared(name) {
		return true, s.remove(path)
	}
	if !u.marked && (s.fresh[name] || s.pins[name] > 0) {
		s.wake() // it may be needed no more by the next sweep
	}
	for _, origin := range u.origins {
		now.add(origin, name, max(size, u.size))
	}
	return false, nil
}

// spared reports whether a file is kept without a record. s.mu is held.
func (s *Store) spared(name string) bool {
	return s.writing[name] || s.pins[name] > 0 || s.fresh[name] || s.held[name] > s.cfg.Clock.Mono()
}

// readPart fills u with what the header of a part says: whether its rest may still come,
// and who is charged for what. It holds no lock, as records may wait for a commit.
func (s *Store) readPart(path string, u *use, records Records) {
	f, err := s.root.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	n, err := readNote(f)
	if err != nil {
		return
	}
	u.size, u.origins = n.manifest.Size, append(u.origins, n.owner)
	late := s.cfg.Clock.Now().Add(-proto.Skew).UnixMilli()
	u.awaited = (n.notAfter > late || s.cfg.Clock.Doubted()) && (n.task.IsZero() || records.Awaits(n.task))
}

// settle replaces the charges by those that the records gave, and adds what was charged
// since the mark began.
func (s *Store) settle(marked charges) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.charges
	s.charges = marked
	for owner, c := range old {
		for name, size := range c.sizes {
			if s.spared(name) {
				s.charges.add(owner, name, size)
			}
		}
	}
	now := s.cfg.Clock.Mono()
	maps.DeleteFunc(s.held, func(_ string, until time.Duration) bool { return until <= now })
}

// remove removes a file. It is not made durable: one that comes back after a power cut is
// swept again. s.mu is held.
func (s *Store) remove(path string) error {
	name, part := strings.CutSuffix(path, partSuffix)
	size, err := s.stat(name, path)
	if err == nil {
		err = s.root.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("remove body: %w", err)
	}
	delete(s.held, name)
	if part {
		s.count(path, -1, 0)
		s.setPart(name, 0)
	} else {
		s.count(path, -1, -size)
	}
	return nil
}
