package ownership

import (
	"sync"

	"github.com/balefire/balefire/proto"
)

// A inputQuota counts whose messages wait in the room. Nobody has more of it than is free,
// so that one who floods it leaves half of it to all others, and many who do leave a
// share to each.
type inputQuota struct {
	mu     sync.Mutex
	byPeer map[proto.PeerID]int
}

// acquire reports whether one more of p may wait where there is room for free.
func (q *inputQuota) acquire(p proto.PeerID, free int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byPeer[p] >= free {
		return false
	}
	if q.byPeer == nil {
		q.byPeer = map[proto.PeerID]int{}
	}
	q.byPeer[p]++
	return true
}

func (q *inputQuota) release(p proto.PeerID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byPeer[p]--; q.byPeer[p] == 0 {
		delete(q.byPeer, p)
	}
}

// enqueueFrom queues what p said. What finds no room is dropped.
func (d *Driver) enqueueFrom(p proto.PeerID, in func()) {
	if !d.quota.acquire(p, cap(d.inputs)-len(d.inputs)) {
		return
	}
	select {
	case d.inputs <- func() {
		d.quota.release(p)
		d.sender = p
		in()
		d.sender = proto.PeerID{}
	}:
	default:
		d.quota.release(p)
	}
}
