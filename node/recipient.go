package node

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// Names are looked up in the whole book, so what one names is remembered for a
// moment. What is known of the peer is always read anew.
const (
	nameTTL  = time.Second // after which another peer may have taken the name
	maxNames = 1024
)

// nameCache remembers which peers were named of late.
type nameCache struct {
	mu    sync.Mutex
	peers map[string]cachedName
}

type cachedName struct {
	peer proto.PeerID
	at   time.Duration // monotonic
}

func newNameCache() *nameCache { return &nameCache{peers: map[string]cachedName{}} }

func (s *nameCache) get(target string, now time.Duration) (proto.PeerID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.peers[target]
	return p.peer, ok && now-p.at < nameTTL
}

func (s *nameCache) put(target string, p proto.PeerID, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.peers) >= maxNames {
		clear(s.peers)
	}
	s.peers[target] = cachedName{p, now}
}

// recipient finds the peer that a target names, with the key to seal for it. What it
// returns is only to be read.
func (n *Node) recipient(target string) (*transport.Peer, error) {
	if name, ok := strings.CutPrefix(target, queuePrefix); ok {
		home, err := n.queues.homeOf(name)
		if err != nil {
			return nil, err
		}
		return n.recipient(home.String())
	}
	if what, _, ok := strings.Cut(target, ":"); ok && what == "agent" || target == "all" {
		return nil, fmt.Errorf("%w: target %.60q: this node sends to peers by name or id", ErrInvalid, target)
	}
	p, err := n.namedPeer(target)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	case p.Blocked:
		return nil, fmt.Errorf("%w: %s is blocked here: balefire-node peers unblock %s", ErrDenied, p.Name, p.Name)
	case len(p.KeyRecord.Public) == 0:
		return nil, fmt.Errorf("%w: the sealing key of %s is not known yet: it is learnt when the two nodes meet", ErrRefused, p.Name)
	}
	return p, nil
}

// namedPeer returns the peer that a target names, only to be read.
func (n *Node) namedPeer(target string) (*transport.Peer, error) {
	now := n.cfg.Clock.Mono()
	if id, ok := n.names.get(target, now); ok {
		if p := n.book.Recipient(id); p != nil {
			return p, nil
		}
	}
	p, err := n.book.Find(target)
	if err == nil && p.Peer != n.keys.Peer() {
		n.names.put(target, p.Peer, now)
	}
	return &p, err
}
