package submit

import (
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A name is looked up in the whole address book, so the peer of a name is cached
// briefly. The state of the peer is always read again.
const (
	nameTTL  = time.Second // lifetime of a cached name
	maxNames = 1024
)

// nameCache caches which peers the recently used names refer to.
type nameCache struct {
	mu    sync.Mutex
	peers map[string]cachedName
}

type cachedName struct {
	peer proto.PeerID
	at   time.Duration // monotonic
}

func newNameCache() *nameCache { return &nameCache{peers: map[string]cachedName{}} }

func (c *nameCache) get(target string, now time.Duration) (proto.PeerID, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.peers[target]
	return p.peer, ok && now-p.at < nameTTL
}

func (c *nameCache) put(target string, p proto.PeerID, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.peers) >= maxNames {
		clear(c.peers)
	}
	c.peers[target] = cachedName{p, now}
}

// recipient returns the peer that a target names, with its sealing key. The result must
// not be modified.
func (s *Submitter) recipient(target string) (*addressbook.Peer, error) {
	t, err := proto.ParseTarget(target)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	case t.Kind == proto.TargetQueue:
		home, err := s.HomeOf(t.Name)
		if err != nil {
			return nil, err
		}
		return s.recipient(home.String())
	case t.Kind != proto.TargetPeer:
		return nil, fmt.Errorf("%w: target %.60q: use the name or id of a peer, or queue:NAME", wire.ErrInvalid, target)
	}
	p, err := s.namedPeer(target)
	switch {
	case err != nil:
		return nil, err
	case p.Blocked:
		return nil, fmt.Errorf("%w: %s is blocked here: balefire-node peers unblock %s", wire.ErrDenied, p.Name, p.Name)
	case len(p.KeyRecord.Public) == 0:
		return nil, fmt.Errorf("%w: the sealing key of %s is not known yet: the node learns it when it connects to %[2]s", wire.ErrRefused, p.Name)
	}
	return p, nil
}

// namedPeer returns the peer that a target names. The result must not be modified.
func (s *Submitter) namedPeer(target string) (*addressbook.Peer, error) {
	now := s.Clock.Mono()
	if id, ok := s.names.get(target, now); ok {
		if p := s.Book.Recipient(id); p != nil {
			return p, nil
		}
	}
	p, err := s.Book.Find(target)
	if err == nil && p.Peer != s.Keys.Peer() {
		s.names.put(target, p.Peer, now)
	}
	return &p, err
}
