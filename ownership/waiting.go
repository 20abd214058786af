package ownership

import (
	"sync"

	"github.com/balefire/balefire/proto"
)

// A waiting counts whose messages wait in the room. Nobody has more of it than is free,
// so that one who floods it leaves half of it to all others, and many who do leave a
// share to each.
type waiting struct {
	mu sync.Mutex
	of map[proto.PeerID]int
}

// enter reports whether one more of p may wait where there is room for free.
func (w *waiting) enter(p proto.PeerID, free int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[p] >= free {
		return false
	}
	if w.of == nil {
		w.of = map[proto.PeerID]int{}
	}
	w.of[p]++
	return true
}

func (w *waiting) leave(p proto.PeerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[p]--; w.of[p] == 0 {
		delete(w.of, p)
	}
}

// offer queues what p said. What finds no room is dropped.
func (r *Room) offer(p proto.PeerID, in func()) {
	if !r.waiting.enter(p, cap(r.inputs)-len(r.inputs)) {
		return
	}
	select {
	case r.inputs <- func() {
		r.waiting.leave(p)
		r.from = p
		in()
		r.from = proto.PeerID{}
	}:
	default:
		r.waiting.leave(p)
	}
}
