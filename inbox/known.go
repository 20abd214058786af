package inbox

import (
	"container/heap"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/balefire/balefire/proto"
)

// A mask is what memory keeps of an id: 48 bytes.
type mask struct {
	size     uint32 // bytes of its envelope
	away     bool   // it moved with its queue, and may live: no settlement forgets it
	seq      proto.Seq
	notAfter int64  // Unix milliseconds
	digest   uint64 // the first bytes of what was signed
	origin   uint32 // index in known.origins
	state    proto.TaskState
}

// An origin is what memory keeps of a node that sends tasks.
type origin struct {
	peer proto.PeerID
	mark proto.Seq // settled, on disk
	want proto.Seq // settled, as the origin said last
	done doneHeap  // finished ids above the mark, lowest sequence first
	bars int       // wishes to cancel what has not arrived
	held held
}

// doneHeap orders finished ids of one origin by sequence.
type doneHeap []doneID

type doneID struct {
	seq proto.Seq
	id  proto.TaskID
}

func (h doneHeap) Len() int           { return len(h) }
func (h doneHeap) Less(i, j int) bool { return h[i].seq.Compare(h[j].seq) < 0 }
func (h doneHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *doneHeap) Push(x any)        { *h = append(*h, x.(doneID)) }
func (h *doneHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// A bar is what memory keeps of a task that was cancelled before it arrived.
type bar struct {
	origin   uint32
	notAfter int64 // Unix milliseconds: no copy lives longer
}

// A flight is a group of ids that is being committed.
type flight struct{ landed chan struct{} }

// known is the memory of every id in custody here: live, being committed, and
// finished but not yet settled. What it says of live and finished ones is on
// disk; it changes only after the commit.
type known struct {
	mu      sync.Mutex
	ids     map[proto.TaskID]mask
	flights map[proto.TaskID]*flight // being committed, not in ids
	bars    map[proto.TaskID]bar     // not in ids
	origins []*origin
	index   map[proto.PeerID]uint32
	held    held // of all origins together
	away    int  // of ids: they take up nobody's share
	maxAway int
	floor   int64 // Unix milliseconds; on disk
}

// newKnown returns the memory of nothing yet. Of ids that moved with their queue it
// keeps at most maxAway past what their origin settles: those who send queues to and
// fro must not use up what all others need.
func newKnown(maxAway int) *known {
	return &known{
		maxAway: maxAway,
		ids:     map[proto.TaskID]mask{},
		flights: map[proto.TaskID]*flight{},
		bars:    map[proto.TaskID]bar{},
		index:   map[proto.PeerID]uint32{},
	}
}

// originOf returns the origin of peer p, a new one if need be. The caller holds mu.
func (k *known) originOf(p proto.PeerID) (*origin, uint32) {
	i, ok := k.index[p]
	if !ok {
		i = uint32(len(k.origins))
		k.origins = append(k.origins, &origin{peer: p})
		k.index[p] = i
	}
	return k.origins[i], i
}

// settled returns how far an origin has settled, the word or the disk whichever
// is higher. The caller holds mu.
func (o *origin) settled() proto.Seq { return higher(o.mark, o.want) }

func short(digest []byte) uint64 {
	if len(digest) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(digest)
}

// look returns how an arrival is known, or the flight that it must wait for.
// The caller holds mu.
func (k *known) look(a *Arrival, s *sight) *flight {
	if f := k.flights[a.Header.ID]; f != nil {
		return f
	}
	o, i := k.originOf(a.Header.Origin)
	s.mark, s.floor = o.settled(), k.floor
	s.known = stranger
	if m, ok := k.ids[a.Header.ID]; ok {
		s.known = imposter
		if m.origin == i && m.seq == a.Header.Seq && m.digest == short(a.Digest[:]) {
			s.known, s.first = same, m.state
		}
	} else if b, ok := k.bars[a.Header.ID]; ok && b.origin == i {
		s.known = barred
	}
	return nil
}

// land notes what of a flight is on disk, and lets those who wait look again.
func (k *known) land(f *flight, arrivals []Arrival, took []int, errs []error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for n, at := range took {
		a := &arrivals[at]
		delete(k.flights, a.Header.ID)
		m := k.maskOf(a)
		k.hold(m, -1) // no longer under way
		if errs[n] != nil {
			continue
		}
		k.lift(a.Header.ID)
		k.put(a.Header.ID, m)
	}
	close(f.landed)
}

// depart notes that an arrival is being committed. The caller holds mu.
func (k *known) depart(a *Arrival, f *flight) {
	k.flights[a.Header.ID] = f
	k.hold(k.maskOf(a), 1)
}

// maskOf returns what is kept of an arrival once it is on disk. The caller holds mu.
func (k *known) maskOf(a *Arrival) mask {
	_, i := k.originOf(a.Header.Origin)
	return mask{
		size: a.size(), seq: a.Header.Seq, notAfter: a.Header.NotAfter, digest: short(a.Digest[:]),
		origin: i, state: proto.Accepted,
	}
}

// landed waits until the id is in no flight: what was just written may be taken
// before its group has landed.
func (k *known) landed(id proto.TaskID) {
	k.mu.Lock()
	f := k.flights[id]
	k.mu.Unlock()
	if f != nil {
		<-f.landed
	}
}

// found notes an id that was found on disk when the inbox was opened.
func (k *known) found(id proto.TaskID, r *proto.Record, size uint32) {
	p, _ := proto.PeerIDFrom(r.Peer)
	m := mask{size: size, seq: r.Seq(), notAfter: r.NotAfterMs, digest: short(r.RequestDigest), state: r.State}
	if r.State.Terminal() {
		m.away = r.Status == statusMoved
		k.finished(id, m, p, true)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, m.origin = k.originOf(p)
	k.put(id, m)
}

// gone reports whether a task was here and moved on with its queue.
func (k *known) gone(id proto.TaskID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ids[id].away
}

// marked notes a settled mark that was found on disk.
func (k *known) marked(p proto.PeerID, mark proto.Seq) {
	k.mu.Lock()
	defer k.mu.Unlock()
	o, _ := k.originOf(p)
	o.mark = higher(o.mark, mark)
}

// moved notes the state of a live task.
func (k *known) moved(id proto.TaskID, to proto.TaskState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m, ok := k.ids[id]; ok {
		m.state = to
		k.put(id, m)
	}
}

// keeps reports whether a task that ends now must be remembered: only what its
// origin has settled on disk need not be.
func (k *known) keeps(p proto.PeerID, seq proto.Seq) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	o, _ := k.originOf(p)
	return !forgettable(seq, o.mark)
}

// finished notes that a task has ended; keep says that its id is on disk.
func (k *known) finished(id proto.TaskID, m mask, p proto.PeerID, keep bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !keep {
		k.drop(id)
		return
	}
	o, i := k.originOf(p)
	m.origin = i
	m.away = m.away && k.away < k.maxAway
	k.put(id, m)
	if !m.away {
		heap.Push(&o.done, doneID{m.seq, id})
	}
}

// state returns how far a task of this origin came; ok is false when it is unknown.
func (k *known) state(id proto.TaskID) (from proto.PeerID, s proto.TaskState, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, ok := k.ids[id]
	if !ok {
		return from, 0, false
	}
	return k.origins[m.origin].peer, m.state, true
}

// What became of a bar.
type barring byte

const (
	barKept barring = iota
	barHere         // the task is here, or arriving
	barFull         // its origin has as many as it may, or the id is barred for another
)

// maxBars is how many tasks one origin may cancel before they arrive: a member
// that makes them up must not use up what all others need.
const maxBars = 1024

// bar notes that a task was cancelled before it arrived, before that is on disk.
func (k *known) bar(id proto.TaskID, p proto.PeerID, notAfter int64) barring {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, here := k.ids[id]
	if here || k.flights[id] != nil {
		return barHere
	}
	o, i := k.originOf(p)
	old, again := k.bars[id]
	switch {
	case again && old.origin == i:
		return barKept
	case again || o.bars >= maxBars:
		return barFull
	}
	o.bars++
	k.bars[id] = bar{i, notAfter}
	return barKept
}

// unbar takes that back.
func (k *known) unbar(id proto.TaskID) { k.mu.Lock(); defer k.mu.Unlock(); k.lift(id) }

// lift forgets a bar, if there is one. The caller holds mu.
func (k *known) lift(id proto.TaskID) {
	if b, ok := k.bars[id]; ok {
		k.origins[b.origin].bars--
		delete(k.bars, id)
	}
}

// count returns the number of ids that are kept, but for those that moved on.
func (k *known) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size()
}

// size is count for a caller that holds mu.
func (k *known) size() int { return len(k.ids) - k.away + len(k.flights) + len(k.bars) }

// settle notes what an origin says; it reports whether that is news.
func (k *known) settle(p proto.PeerID, seq proto.Seq) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	o, _ := k.originOf(p)
	if seq.Compare(o.settled()) <= 0 {
		return false
	}
	o.want = seq
	return true
}

// A settlement is one step of forgetting: an origin, its mark, and finished ids
// that the mark covers.
type settlement struct {
	origin *origin
	mark   proto.Seq
	moved  bool // the mark is not on disk yet
	ids    []proto.TaskID
}

// unsettled returns one settlement for each origin whose mark is not on disk, or
// covers finished ids, with at most n ids each.
func (k *known) unsettled(n int) []settlement {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []settlement
	for _, o := range k.origins {
		to := o.settled()
		if to == o.mark && !o.covers(to) {
			continue
		}
		s := settlement{origin: o, mark: to, moved: to != o.mark}
		for o.covers(to) && len(s.ids) < n {
			s.ids = append(s.ids, heap.Pop(&o.done).(doneID).id)
		}
		out = append(out, s)
	}
	return out
}

// covers reports whether the lowest finished sequence is up to mark.
func (o *origin) covers(mark proto.Seq) bool {
	return len(o.done) > 0 && forgettable(o.done[0].seq, mark)
}

// settledOnDisk brings memory to where the disk is: the mark is there unless
// marked is an error, the ids are deleted unless forgot is.
func (k *known) settledOnDisk(s settlement, marked, forgot error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if marked == nil {
		s.origin.mark = higher(s.origin.mark, s.mark)
	}
	for _, id := range s.ids {
		if forgot == nil {
			k.drop(id)
		} else if m, ok := k.ids[id]; ok {
			heap.Push(&s.origin.done, doneID{m.seq, id})
		}
	}
}

// aged is what old returns.
type aged struct {
	ids   []proto.TaskID
	bars  []proto.TaskID
	floor int64
}

// old returns the finished ids that have outlived every copy of them, and the
// floor that must be on disk before they are dropped (I12).
func (k *known) old(now int64) aged {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := aged{floor: k.floor}
	for id, m := range k.ids {
		if m.state.Terminal() && outlived(m.notAfter, now) {
			s.ids = append(s.ids, id)
			s.floor = max(s.floor, m.notAfter)
		}
	}
	for id, b := range k.bars {
		if outlived(b.notAfter, now) {
			s.bars = append(s.bars, id)
			s.floor = max(s.floor, b.notAfter)
		}
	}
	return s
}

// raise notes a floor that is on disk.
func (k *known) raise(floor int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.floor = max(k.floor, floor)
}

// dropped forgets what was dropped by age.
func (k *known) dropped(s aged) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range s.bars {
		k.lift(id)
	}
	touched := map[uint32]bool{}
	for _, id := range s.ids {
		if m, ok := k.ids[id]; ok {
			touched[m.origin] = true
			k.drop(id)
		}
	}
	for i := range touched {
		o := k.origins[i]
		o.done = slices.DeleteFunc(o.done, func(d doneID) bool { _, ok := k.ids[d.id]; return !ok })
		heap.Init(&o.done)
	}
}
