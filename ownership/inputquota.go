package ownership

import (
	"sync"

	"github.com/balefire/balefire/proto"
)

// An inputQuota limits the queued inputs of each peer to the number of free places. A peer
// that floods the queue leaves half of it to the others, and many that do leave a share to
// each.
type inputQuota struct {
	mu     sync.Mutex
	byPeer map[proto.PeerID]int
}

// acquire reports whether one more input of p may wait when free places are left.
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

// enqueueFrom queues an input from p. It is dropped if the queue or p's share is full.
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
