package ownership

import (
	"sync"

	"github.com/balefire/balefire/proto"
)

// maxInputBytes is how many bytes of messages may be queued.
const maxInputBytes = 32 << 20

// An inputQuota limits the queued inputs of each peer to the number of free places, and their
// bytes to those that are free. A peer that floods the queue leaves half of it to the others,
// and many that do leave a share to each.
type inputQuota struct {
	mu     sync.Mutex
	bytes  int // of all peers
	byPeer map[proto.PeerID]inputShare
}

// An inputShare is what is queued of one peer.
type inputShare struct{ inputs, bytes int }

// acquire reports whether one more input of p, with so many bytes, may wait when free places
// are left.
func (q *inputQuota) acquire(p proto.PeerID, bytes, free int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.byPeer[p]
	if s.inputs >= free || s.bytes+bytes > maxInputBytes-q.bytes {
		return false
	}
	if q.byPeer == nil {
		q.byPeer = map[proto.PeerID]inputShare{}
	}
	q.bytes += bytes
	q.byPeer[p] = inputShare{s.inputs + 1, s.bytes + bytes}
	return true
}

func (q *inputQuota) release(p proto.PeerID, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.byPeer[p]
	q.bytes -= bytes
	if s = (inputShare{s.inputs - 1, s.bytes - bytes}); s.inputs > 0 {
		q.byPeer[p] = s
	} else {
		delete(q.byPeer, p)
	}
}

// enqueueFrom queues an input from p that keeps so many bytes. It is dropped if the queue or
// p's share is full.
func (d *Driver) enqueueFrom(p proto.PeerID, bytes int, in func()) {
	if !d.quota.acquire(p, bytes, cap(d.inputs)-len(d.inputs)) {
		return
	}
	select {
	case d.inputs <- func() {
		d.quota.release(p, bytes)
		d.sender = p
		in()
		d.sender = proto.PeerID{}
	}:
	default:
		d.quota.release(p, bytes)
	}
}
