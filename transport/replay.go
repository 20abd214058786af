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

// replayBits is how far behind the newest message of its author another may
// come and still be heard. Messages overtake each other on the way: libp2p's own
// validator takes each that was overtaken for a replay.
const replayBits = 8192

// maxReplayAuthors bounds the authors that are remembered in memory.
const maxReplayAuthors = 4096

// replayGuard know which messages were heard: of each author the highest number,
// and which of those below it. gossipsub itself forgets after ten minutes, so
// that an old message would go round again.
type replayGuard struct {
	nonces Nonces

	mu      sync.Mutex
	authors map[proto.PeerID]*authorWindows
	dirty   map[proto.PeerID]bool
}

// An authorWindows counts its messages over its starts. libp2p counts them too, from the
// wall clock at the start: who set its clock back would not be heard until the
// clock is where it was. That count serves for authors of versions without the other.
type authorWindows struct{ app, libp2p replayWindow }

type replayWindow struct {
	highest uint64
	seen    [replayBits / 64]uint64 // number n is bit n % sightingBits
	floor   uint64                  // nothing up to it is heard: it was before a restart
}

func newReplayGuard(n Nonces) *replayGuard {
	return &replayGuard{nonces: n, authors: make(map[proto.PeerID]*authorWindows), dirty: make(map[proto.PeerID]bool)}
}

// accept takes the numbers of a message, the author's own (0: it has none) and libp2p's,
// and reports whether it is new.
func (s *replayGuard) accept(ctx context.Context, p proto.PeerID, own uint64, libp2p []byte) (fresh bool, err error) {
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
		fresh = a.app.accept(own)
	} else {
		fresh = a.libp2p.accept(binary.BigEndian.Uint64(libp2p))
	}
	if fresh {
		s.dirty[p] = true
	}
	return fresh, nil
}

// load reads what was kept of an author. The caller holds mu.
func (s *replayGuard) load(ctx context.Context, p proto.PeerID) (*authorWindows, error) {
	a := new(authorWindows)
	if s.nonces != nil {
		b, err := s.nonces.Get(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("read the newest number of %s: %w", p.Short(), err)
		}
		if len(b) == 8 || len(b) == 16 { // 8: of a version that kept libp2p's alone
			a.libp2p.restore(binary.BigEndian.Uint64(b))
		}
		if len(b) == 16 {
			a.app.restore(binary.BigEndian.Uint64(b[8:]))
		}
	}
	for p := range s.authors {
		if len(s.authors) < maxReplayAuthors {
			break
		}
		if !s.dirty[p] || s.nonces == nil {
			delete(s.authors, p)
		}
	}
	s.authors[p] = a
	return a, nil
}

// restore has nothing up to n be new.
func (a *replayWindow) restore(n uint64) { a.floor, a.highest = n, n }

// accept notes number n and reports whether it is new.
func (a *replayWindow) accept(n uint64) bool {
	switch {
	case n <= a.floor || n+replayBits <= a.highest || n > 1<<63:
		return false
	case n > a.highest:
		if n-a.highest >= replayBits {
			clear(a.seen[:])
		} else {
			for i := a.highest + 1; i <= n; i++ {
				a.seen[i%replayBits/64] &^= 1 << (i % 64)
			}
		}
		a.highest = n
	}
	word, bit := &a.seen[n%replayBits/64], uint64(1)<<(n%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// persist writes down the highest numbers that changed.
func (s *replayGuard) persist(ctx context.Context) error {
	s.mu.Lock()
	dirty := s.dirty
	s.dirty = make(map[proto.PeerID]bool)
	all := make(map[proto.PeerID][]byte, len(dirty))
	for p := range dirty {
		if a := s.authors[p]; a != nil {
			all[p] = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, a.libp2p.highest), a.app.highest)
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
