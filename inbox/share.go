package inbox

import (
	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// A usage counts what one origin, or all together, use here.
type usage struct {
	ids   int   // live, being written, and finished but not settled
	live  int   // tasks in custody that have not ended
	bytes int64 // of their envelopes
}

// hasShare reports whether the origin of a has a share left for it (see [fair.Within]). The
// caller holds mu.
func (idx *dedupIndex) hasShare(a *Arrival, maxIDs, maxTasks int, maxBytes int64) bool {
	o, _ := idx.originOf(a.Header.Origin)
	return fair.Within(o.usage.ids, idx.sizeLocked(), maxIDs) && fair.Within(o.usage.live, idx.usage.live, maxTasks) && fair.Within(o.usage.bytes, idx.usage.bytes, maxBytes)
}

// put adds or replaces an entry. The caller holds mu.
func (idx *dedupIndex) put(id proto.TaskID, e entry) {
	if old, ok := idx.ids[id]; ok {
		idx.addUsage(old, -1)
	}
	idx.addUsage(e, 1)
	idx.ids[id] = e
}

// drop forgets an id. The caller holds mu.
func (idx *dedupIndex) drop(id proto.TaskID) {
	if e, ok := idx.ids[id]; ok {
		idx.addUsage(e, -1)
		delete(idx.ids, id)
	}
}

// addUsage adds an entry to the usage or, with n = -1, subtracts it.
func (idx *dedupIndex) addUsage(e entry, n int) {
	if e.movedOn {
		idx.moved += n
		return
	}
	for _, h := range []*usage{&idx.usage, &idx.origins[e.origin].usage} {
		h.ids += n
		if !e.state.Terminal() {
			h.live += n
			h.bytes += int64(n) * int64(e.size)
		}
	}
}

// size returns how many bytes of the limit for records a uses. An offloaded body counts
// elsewhere.
func (a *Arrival) size() uint32 {
	if a.offloaded() {
		return uint32(len(a.Envelope.GetHeader()))
	}
	return uint32(len(a.Envelope.GetHeader()) + len(a.Envelope.GetBody()))
}
