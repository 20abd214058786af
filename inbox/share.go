package inbox

import "github.com/balefire/balefire/proto"

// shareOfFree is how many times what is free one origin may hold. An origin that is
// alone here has nine tenths of the room; one that floods leaves a tenth to the
// others, of which the next one may take nine tenths, and so on: nobody shuts
// anybody out. Shared-memory switches divide their buffers like this (dynamic
// thresholds, Choudhury and Hahne 1998).
const shareOfFree = 9

// held is what one origin, or all together, take up here.
type held struct {
	ids   int   // live, being written, and finished but not settled
	live  int   // tasks in custody that have not ended
	bytes int64 // of their envelopes
}

// within reports whether who holds o of what all hold may take up one more of
// limit. Where nothing is free it is not the share that refuses.
func within[T int | int64](o, all, limit T) bool {
	free := limit - all
	return free <= 0 || o < shareOfFree*free
}

// fair reports whether the origin of a has a share left for it. The caller holds mu.
func (k *known) fair(a *Arrival, maxIDs, maxTasks int, maxBytes int64) bool {
	o, _ := k.originOf(a.Header.Origin)
	return within(o.held.ids, k.size(), maxIDs) && within(o.held.live, k.held.live, maxTasks) && within(o.held.bytes, k.held.bytes, maxBytes)
}

// put keeps an id, or what is new of it. The caller holds mu.
func (k *known) put(id proto.TaskID, m mask) {
	if old, ok := k.ids[id]; ok {
		k.hold(old, -1)
	}
	k.hold(m, 1)
	k.ids[id] = m
}

// drop forgets an id. The caller holds mu.
func (k *known) drop(id proto.TaskID) {
	if m, ok := k.ids[id]; ok {
		k.hold(m, -1)
		delete(k.ids, id)
	}
}

// hold counts an id in or, with -1, out.
func (k *known) hold(m mask, n int) {
	if m.away {
		k.away += n
		return
	}
	for _, h := range []*held{&k.held, &k.origins[m.origin].held} {
		h.ids += n
		if !m.state.Terminal() {
			h.live += n
			h.bytes += int64(n) * int64(m.size)
		}
	}
}

// size is how much of the room for records a takes up: what is kept apart counts
// there.
func (a *Arrival) size() uint32 {
	if a.spilled() {
		return uint32(len(a.Envelope.GetHeader()))
	}
	return uint32(len(a.Envelope.GetHeader()) + len(a.Envelope.GetBody()))
}
