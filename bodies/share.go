package bodies

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
)

// freeMultiple is how many times the free space one origin may refer to: see
// docs/promises.md, what one member may take up.
const freeMultiple = 9

// A charge is what one origin refers to: the full size of each object, however many
// others refer to it too.
type charge struct {
	sizes map[string]int64
	total int64
}

// charges are what all origins refer to.
type charges map[proto.PeerID]*charge

// add charges an origin with an object; zero is this node, which is not charged.
func (cs charges) add(origin proto.PeerID, name string, size int64) {
	if origin.IsZero() {
		return
	}
	c := cs[origin]
	if c == nil {
		c = &charge{sizes: map[string]int64{}}
		cs[origin] = c
	}
	c.total += size - c.sizes[name]
	c.sizes[name] = size
}

// has reports whether the origin is charged for the file.
func (c *charge) has(name string) bool {
	if c == nil {
		return false
	}
	_, ok := c.sizes[name]
	return ok
}

// drop no longer charges an origin for a file.
func (cs charges) drop(origin proto.PeerID, name string) {
	if c := cs[origin]; c.has(name) {
		c.total -= c.sizes[name]
		if delete(c.sizes, name); len(c.sizes) == 0 {
			delete(cs, origin)
		}
	}
}

// remove no longer charges anyone for a file.
func (cs charges) remove(name string) {
	for origin := range cs {
		cs.drop(origin, name)
	}
}

// checkSpace refuses n more bytes if there is no space for them. s.mu is held.
func (s *Store) checkSpace(n int64, essential bool) error {
	if essential {
		return nil
	}
	if free := s.usage.MaxTotal - s.usage.Bytes; s.usage.MaxTotal > 0 && free < n {
		return fmt.Errorf("%w: %d bytes are stored, %d more fit: raise the limit or purge tasks", ErrFull, s.usage.Bytes, max(free, 0))
	}
	if s.askDisk(); s.asked != 0 && s.free-n < s.cfg.Reserve {
		return fmt.Errorf("%w: the disk has %d free bytes, of which %d are its reserve: free space on it or purge tasks", ErrFull, max(s.free, 0), s.cfg.Reserve)
	}
	return nil
}

// askEvery is the minimum time between two questions for the free space of the disk.
const askEvery = time.Second

// askDisk asks for the free space of the disk; without an answer the last one counts. s.mu
// is held.
func (s *Store) askDisk() {
	now := s.cfg.Clock.Mono() + 1
	if s.cfg.Space == nil || s.asked != 0 && now-s.asked < askEvery {
		return
	}
	if free, _, err := s.cfg.Space(); err == nil {
		s.free, s.asked = free, now
	}
}

// checkShare refuses n more bytes for an origin that refers to more than nine times what
// would then be free below MaxTotal and above the reserve of the disk; for essential
// objects, on the disk. s.mu is held, and checkSpace was asked.
func (s *Store) checkShare(origin proto.PeerID, n int64, essential bool) error {
	c := s.charges[origin]
	if c == nil {
		return nil
	}
	free := s.usage.MaxTotal - s.usage.Bytes
	switch {
	case essential && s.cfg.Space == nil, !essential && s.usage.MaxTotal == 0:
		return nil
	case essential:
		var err error
		if free, _, err = s.cfg.Space(); err != nil {
			return nil // unknown is no reason to refuse a result
		}
	case s.asked != 0:
		free = min(free, s.free-s.cfg.Reserve)
	}
	if c.total > freeMultiple*(free-n) {
		return ErrShare
	}
	return nil
}

// makeSpace refuses n more bytes of an origin unless they fit. Parts without progress
// within grace are evicted to make space, oldest first; their senders start over. s.mu is
// held.
func (s *Store) makeSpace(n int64, origin proto.PeerID, essential bool) error {
	if err := s.checkSpace(n, essential); err != nil && !s.evict(n) {
		return err
	}
	return s.checkShare(origin, n, essential)
}

// reserve counts n more bytes, or refuses them. part is the name of an object that is
// being received, empty for a file without a name.
func (s *Store) reserve(part string, n int64, origin proto.PeerID, essential bool) error {
	if n == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.makeSpace(n, origin, essential); err != nil {
		return err
	}
	s.usage.Bytes += n
	s.free -= n
	if part != "" {
		s.parts[part] += n
	}
	return nil
}

// evictInterval is the minimum time between two searches for stalled parts.
const evictInterval = time.Minute

// evict removes stalled parts until n bytes fit, and reports whether they do. s.mu is
// held.
func (s *Store) evict(n int64) bool {
	now := s.cfg.Clock.Mono()
	if now-s.opened < grace || s.evicted != 0 && now-s.evicted < evictInterval {
		return false
	}
	s.evicted = now
	var idle []fs.FileInfo
	err := s.each(func(path string, e fs.DirEntry) error {
		name, part := strings.CutSuffix(path, partSuffix)
		if !part || s.writing[name] || s.held[name] > now {
			return nil
		}
		info, err := e.Info()
		if err == nil {
			idle = append(idle, info)
		}
		return err
	})
	if err != nil {
		return false
	}
	slices.SortFunc(idle, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, part := range idle {
		if s.root.Remove(part.Name()) == nil {
			name := strings.TrimSuffix(part.Name(), partSuffix)
			s.free += s.parts[name]
			s.count(part.Name(), -1, 0)
			s.setPart(name, 0)
			s.charges.remove(name)
		}
		if s.checkSpace(n, false) == nil {
			return true
		}
	}
	return false
}
