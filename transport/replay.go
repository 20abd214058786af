package transport

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"sync"

	"github.com/balefire/balefire/proto"
)

// Nonces persists which messages of an author were received.
type Nonces interface {
	// Get returns the value that Put stored for p, nil if none.
	Get(ctx context.Context, p proto.PeerID) ([]byte, error)
	// Put stores a value for each of these peers, all or none.
	Put(ctx context.Context, all map[proto.PeerID][]byte) error
}

// replayBits is how far a message's number may be behind the newest one of its author.
// Messages are reordered in transit: libp2p's own validator considers each late one a
// replay.
const replayBits = 8192

// maxReplayAuthors bounds the authors remembered in memory.
const maxReplayAuthors = 4096

// A replayGuard knows which messages were received: the highest number of each author,
// and which of those below it. gossipsub itself forgets after ten minutes, so an old
// message could be replayed.
type replayGuard struct {
	nonces Nonces

	mu      sync.Mutex
	authors map[proto.PeerID]*authorWindows
	dirty   map[proto.PeerID]bool
}

// authorWindows holds the windows of an author's two message numbers. libp2p's own count
// starts from the wall clock: an author that set its clock back would be ignored until
// the clock catches up. It is only used for authors of versions without the other.
type authorWindows struct{ app, libp2p replayWindow }

type replayWindow struct {
	highest uint64
	seen    [replayBits / 64]uint64 // number n is bit n % replayBits
	floor   uint64                  // numbers up to it are rejected: they precede a restart
}

func newReplayGuard(n Nonces) *replayGuard {
	return &replayGuard{nonces: n, authors: make(map[proto.PeerID]*authorWindows), dirty: make(map[proto.PeerID]bool)}
}

// accept records the numbers of a message, the author's own (0: it has none) and
// libp2p's, and reports whether it is new.
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

// load reads what was stored for an author. The caller holds mu.
func (s *replayGuard) load(ctx context.Context, p proto.PeerID) (*authorWindows, error) {
	a := new(authorWindows)
	if s.nonces != nil {
		b, err := s.nonces.Get(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("read the highest number of %s: %w", p.Short(), err)
		}
		if len(b) == 16 {
			a.libp2p.restore(binary.BigEndian.Uint64(b))
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

// restore rejects all numbers up to n.
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

// persist stores the highest numbers that changed.
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
