package transport

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"sync"

	"github.com/balefire/balefire/proto"
)

// Nonces keeps, over restarts, which messages of an author were heard.
type Nonces interface {
	// Get returns what Put kept for p, nil for nothing.
	Get(ctx context.Context, p proto.PeerID) ([]byte, error)
	// Put keeps a value for each of these peers, all or none.
	Put(ctx context.Context, all map[proto.PeerID][]byte) error
}

// sightingBits is how far behind the newest message of its author another may
// come and still be heard. Messages overtake each other on the way: libp2p's own
// validator takes each that was overtaken for a replay.
const sightingBits = 8192

// maxSightings bounds the authors that are remembered in memory.
const maxSightings = 4096

// sightings know which messages were heard: of each author the highest number,
// and which of those below it. gossipsub itself forgets after ten minutes, so
// that an old message would go round again.
type sightings struct {
	nonces Nonces

	mu      sync.Mutex
	authors map[proto.PeerID]*author
	dirty   map[proto.PeerID]bool
}

// An author counts its messages over its starts. libp2p counts them too, from the
// wall clock at the start: who set its clock back would not be heard until the
// clock is where it was. That count serves for authors of versions without the other.
type author struct{ own, libp2p sighting }

type sighting struct {
	highest uint64
	heard   [sightingBits / 64]uint64 // number n is bit n % sightingBits
	floor   uint64                    // nothing up to it is heard: it was before a restart
}

func newSightings(n Nonces) *sightings {
	return &sightings{nonces: n, authors: make(map[proto.PeerID]*author), dirty: make(map[proto.PeerID]bool)}
}

// note takes the numbers of a message, the author's own (0: it has none) and libp2p's,
// and reports whether it is new.
func (s *sightings) note(ctx context.Context, p proto.PeerID, own uint64, libp2p []byte) (fresh bool, err error) {
	if len(libp2p) != 8 {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.authors[p]
	if a == nil {
		if a, err = s.load(ctx, p); err != nil {
			return false, err
		}
	}
	if own > 0 {
		fresh = a.own.take(own)
	} else {
		fresh = a.libp2p.take(binary.BigEndian.Uint64(libp2p))
	}
	if fresh {
		s.dirty[p] = true
	}
	return fresh, nil
}

// load reads what was kept of an author. The caller holds mu.
func (s *sightings) load(ctx context.Context, p proto.PeerID) (*author, error) {
	a := new(author)
	if s.nonces != nil {
		b, err := s.nonces.Get(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("read the newest number of %s: %w", p.Short(), err)
		}
		if len(b) == 8 || len(b) == 16 { // 8: of a version that kept libp2p's alone
			a.libp2p.begin(binary.BigEndian.Uint64(b))
		}
		if len(b) == 16 {
			a.own.begin(binary.BigEndian.Uint64(b[8:]))
		}
	}
	for p := range s.authors {
		if len(s.authors) < maxSightings {
			break
		}
		if !s.dirty[p] || s.nonces == nil {
			delete(s.authors, p)
		}
	}
	s.authors[p] = a
	return a, nil
}

// begin has nothing up to n be new.
func (a *sighting) begin(n uint64) { a.floor, a.highest = n, n }

// take notes number n and reports whether it is new.
func (a *sighting) take(n uint64) bool {
	switch {
	case n <= a.floor || n+sightingBits <= a.highest || n > 1<<63:
		return false
	case n > a.highest:
		if n-a.highest >= sightingBits {
			clear(a.heard[:])
		} else {
			for i := a.highest + 1; i <= n; i++ {
				a.heard[i%sightingBits/64] &^= 1 << (i % 64)
			}
		}
		a.highest = n
	}
	word, bit := &a.heard[n%sightingBits/64], uint64(1)<<(n%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// keep writes down the highest numbers that changed.
func (s *sightings) keep(ctx context.Context) error {
	s.mu.Lock()
	dirty := s.dirty
	s.dirty = make(map[proto.PeerID]bool)
	all := make(map[proto.PeerID][]byte, len(dirty))
	for p := range dirty {
		if a := s.authors[p]; a != nil {
			all[p] = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, a.libp2p.highest), a.own.highest)
		}
	}
	s.mu.Unlock()
	if s.nonces == nil || len(all) == 0 {
		return nil
	}
	err := s.nonces.Put(ctx, all)
	if err != nil {
		s.mu.Lock()
		maps.Copy(s.dirty, dirty)
		s.mu.Unlock()
	}
	return err
}
