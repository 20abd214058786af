package inbox

import (
	"container/heap"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/balefire/balefire/proto"
)

// An entry is what is kept in memory for an id: 48 bytes.
type entry struct {
	size     uint32 // bytes of its envelope
	movedOn  bool   // it moved with its queue and may be live: settling does not forget it
	untold   bool   // it ended without a result for its origin, which may ask for it: likewise
	seq      proto.Seq
	notAfter int64  // Unix milliseconds, by this node's clock
	digest   uint64 // the first bytes of what was signed
	origin   uint32 // index in dedupIndex.origins
	state    proto.TaskState
}

// An origin is what is kept in memory for a node that sends tasks.
type origin struct {
	peer       proto.PeerID
	watermark  proto.Seq    // settled mark on disk
	requested  proto.Seq    // settled mark last received from the origin
	finished   finishedHeap // finished ids above the watermark, lowest sequence first
	tombstones int          // tasks cancelled before they arrived
	usage      usage
}

// finishedHeap orders the finished ids of one origin by sequence.
type finishedHeap []finishedID

type finishedID struct {
	seq proto.Seq
	id  proto.TaskID
}

func (h finishedHeap) Len() int           { return len(h) }
func (h finishedHeap) Less(i, j int) bool { return h[i].seq.Compare(h[j].seq) < 0 }
func (h finishedHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *finishedHeap) Push(x any)        { *h = append(*h, x.(finishedID)) }
func (h *finishedHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// A cancelTombstone is what is kept in memory for a task that was cancelled before it
// arrived.
type cancelTombstone struct {
	origin   uint32
	notAfter int64 // Unix milliseconds: no copy can be accepted later
}

// A commitGroup is a group of ids that is being committed.
type commitGroup struct{ done chan struct{} }

// dedupIndex knows every id in custody here: live, being committed, and finished but not
// yet settled. Live and finished ids are on disk; it changes only after the commit.
type dedupIndex struct {
	mu         sync.Mutex
	ids        map[proto.TaskID]entry
	committing map[proto.TaskID]*commitGroup    // being committed, not in ids
	tombstones map[proto.TaskID]cancelTombstone // not in ids
	origins    []*origin
	index      map[proto.PeerID]uint32
	usage      usage // of all origins together
	moved      int   // of ids: they count against no share
	maxMoved   int
}

// newDedupIndex returns an empty index. Of ids that moved with their queue it keeps at most
// maxMoved beyond what their origin has settled: moving queues back and forth must not use
// up the space of others.
func newDedupIndex(maxMoved int) *dedupIndex {
	return &dedupIndex{
		maxMoved:   maxMoved,
		ids:        map[proto.TaskID]entry{},
		committing: map[proto.TaskID]*commitGroup{},
		tombstones: map[proto.TaskID]cancelTombstone{},
		index:      map[proto.PeerID]uint32{},
	}
}

// originOf returns the origin of peer p, and adds it if needed. The caller holds mu.
func (idx *dedupIndex) originOf(p proto.PeerID) (*origin, uint32) {
	i, ok := idx.index[p]
	if !ok {
		i = uint32(len(idx.origins))
		idx.origins = append(idx.origins, &origin{peer: p})
		idx.index[p] = i
	}
	return idx.origins[i], i
}

// settled returns how far an origin has settled, in memory or on disk. The caller holds mu.
func (o *origin) settled() proto.Seq { return maxSeq(o.watermark, o.requested) }

func short(digest []byte) uint64 {
	if len(digest) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(digest)
}

// lookUp sets the status of an arrival, or returns the commit that it must wait for. The
// caller holds mu.
func (idx *dedupIndex) lookUp(a *Arrival, input *acceptInput) *commitGroup {
	if cg := idx.committing[a.Header.ID]; cg != nil {
		return cg
	}
	o, i := idx.originOf(a.Header.Origin)
	input.watermark = o.settled()
	input.idStatus = idNew
	if e, ok := idx.ids[a.Header.ID]; ok {
		input.idStatus = idConflict
		if e.origin == i && e.seq == a.Header.Seq && e.digest == short(a.Digest[:]) {
			input.idStatus, input.firstState = idDuplicate, e.state
		}
	} else if b, ok := idx.tombstones[a.Header.ID]; ok && b.origin == i {
		input.idStatus = idCancelled
	}
	return nil
}

// finishCommit records which arrivals of a commit are on disk, and wakes those that wait
// for it.
func (idx *dedupIndex) finishCommit(cg *commitGroup, arrivals []Arrival, took []int, errs []error) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	for n, at := range took {
		a := &arrivals[at]
		delete(idx.committing, a.Header.ID)
		e := idx.entryOf(a)
		idx.addUsage(e, -1) // no longer being committed
		if errs[n] != nil {
			continue
		}
		idx.dropTombstone(a.Header.ID)
		idx.put(a.Header.ID, e)
	}
	close(cg.done)
}

// startCommit records that an arrival is being committed. The caller holds mu.
func (idx *dedupIndex) startCommit(a *Arrival, cg *commitGroup) {
	idx.committing[a.Header.ID] = cg
	idx.addUsage(idx.entryOf(a), 1)
}

// entryOf returns the entry of an arrival once it is on disk. The caller holds mu.
func (idx *dedupIndex) entryOf(a *Arrival) entry {
	_, i := idx.originOf(a.Header.Origin)
	return entry{
		size: a.size(), seq: a.Header.Seq, notAfter: a.NotAfter(), digest: short(a.Digest[:]),
		origin: i, state: proto.Accepted,
	}
}

// waitCommit waits until the id is not being committed: a task that was just written may be
// started before its commit has finished.
func (idx *dedupIndex) waitCommit(id proto.TaskID) {
	idx.mu.Lock()
	cg := idx.committing[id]
	idx.mu.Unlock()
	if cg != nil {
		<-cg.done
	}
}

// load adds an id that was found on disk when the inbox was opened.
func (idx *dedupIndex) load(id proto.TaskID, r *proto.Record, size uint32) {
	p, _ := proto.PeerIDFrom(r.Peer)
	e := entry{size: size, seq: r.Seq(), notAfter: r.NotAfterMs, digest: short(r.RequestDigest), state: r.State}
	if r.State.Terminal() {
		e.movedOn, e.untold = r.Status == statusMoved, r.Status == statusUntold
		idx.setFinished(id, e, p, true)
		return
	}
	idx.mu.Lock()
	defer idx.mu.Unlock()
	_, e.origin = idx.originOf(p)
	idx.put(id, e)
}

// movedOn reports whether a task was here and moved on with its queue.
func (idx *dedupIndex) movedOn(id proto.TaskID) bool {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	return idx.ids[id].movedOn
}

// loadWatermark adds a watermark that was found on disk.
func (idx *dedupIndex) loadWatermark(p proto.PeerID, mark proto.Seq) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	o, _ := idx.originOf(p)
	o.watermark = maxSeq(o.watermark, mark)
}

// setState sets the state of a live task.
func (idx *dedupIndex) setState(id proto.TaskID, to proto.TaskState) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	if e, ok := idx.ids[id]; ok {
		e.state = to
		idx.put(id, e)
	}
}

// mustRemember reports whether a task that ends now must be remembered: it need not be only
// if its origin has settled it on disk.
func (idx *dedupIndex) mustRemember(p proto.PeerID, seq proto.Seq) bool {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	o, _ := idx.originOf(p)
	return !forgettable(seq, o.watermark)
}

// setFinished records that a task has ended. keep tells that its id is on disk. It returns
// whether the mark of its origin covers it by now: it is to be forgotten.
func (idx *dedupIndex) setFinished(id proto.TaskID, e entry, p proto.PeerID, keep bool) (settled bool) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	if !keep {
		idx.drop(id)
		return false
	}
	o, i := idx.originOf(p)
	e.origin = i
	e.movedOn = e.movedOn && idx.moved < idx.maxMoved
	idx.put(id, e)
	if !e.movedOn && !e.untold {
		heap.Push(&o.finished, finishedID{e.seq, id})
	}
	return o.covers(o.settled())
}

// state returns the origin and state of a task. ok is false when it is unknown.
func (idx *dedupIndex) state(id proto.TaskID) (from proto.PeerID, s proto.TaskState, ok bool) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	e, ok := idx.ids[id]
	if !ok {
		return from, 0, false
	}
	return idx.origins[e.origin].peer, e.state, true
}

// A tombstoneResult is the outcome of addTombstone.
type tombstoneResult byte

const (
	tombstoneAdded   tombstoneResult = iota
	tombstoneArrived                 // the task is here, or arriving
	tombstoneRefused                 // the origin has reached its limit, or another origin cancelled this id
)

// maxTombstones is how many tasks one origin may cancel before they arrive: a member that
// invents them must not use up the space of others.
const maxTombstones = 1024

// addTombstone records that a task was cancelled before it arrived, before that is on disk.
func (idx *dedupIndex) addTombstone(id proto.TaskID, p proto.PeerID, notAfter int64) tombstoneResult {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	_, here := idx.ids[id]
	if here || idx.committing[id] != nil {
		return tombstoneArrived
	}
	o, i := idx.originOf(p)
	old, again := idx.tombstones[id]
	switch {
	case again && old.origin == i:
		return tombstoneAdded
	case again || o.tombstones >= maxTombstones:
		return tombstoneRefused
	}
	o.tombstones++
	idx.tombstones[id] = cancelTombstone{i, notAfter}
	return tombstoneAdded
}

// removeTombstone undoes addTombstone.
func (idx *dedupIndex) removeTombstone(id proto.TaskID) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	idx.dropTombstone(id)
}

// dropTombstone drops the tombstone of id, if there is one. The caller holds mu.
func (idx *dedupIndex) dropTombstone(id proto.TaskID) {
	if b, ok := idx.tombstones[id]; ok {
		idx.origins[b.origin].tombstones--
		delete(idx.tombstones, id)
	}
}

// size returns the number of ids that are kept, without those that moved on.
func (idx *dedupIndex) size() int {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	return idx.sizeLocked()
}

// sizeLocked is size for callers that hold mu.
func (idx *dedupIndex) sizeLocked() int {
	return len(idx.ids) - idx.moved + len(idx.committing) + len(idx.tombstones)
}

// settle records a settled mark received from an origin, and reports whether it is news.
func (idx *dedupIndex) settle(p proto.PeerID, seq proto.Seq) bool {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	o, _ := idx.originOf(p)
	if seq.Compare(o.settled()) <= 0 {
		return false
	}
	o.requested = seq
	return true
}

// A settlement is one step of forgetting: an origin, its mark, and finished ids that the
// mark covers.
type settlement struct {
	origin    *origin
	watermark proto.Seq
	raised    bool // the mark is not on disk yet
	ids       []proto.TaskID
}

// nextSettlements returns one settlement for each origin whose mark is not on disk or
// covers finished ids, with at most n ids each.
func (idx *dedupIndex) nextSettlements(n int) []settlement {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	var out []settlement
	for _, o := range idx.origins {
		to := o.settled()
		if to == o.watermark && !o.covers(to) {
			continue
		}
		s := settlement{origin: o, watermark: to, raised: to != o.watermark}
		for o.covers(to) && len(s.ids) < n {
			s.ids = append(s.ids, heap.Pop(&o.finished).(finishedID).id)
		}
		out = append(out, s)
	}
	return out
}

// covers reports whether the lowest finished sequence is at most mark.
func (o *origin) covers(mark proto.Seq) bool {
	return len(o.finished) > 0 && forgettable(o.finished[0].seq, mark)
}

// applySettlement updates memory to what is on disk: the mark was written unless marked is
// an error, the ids were deleted unless forgot is.
func (idx *dedupIndex) applySettlement(s settlement, marked, forgot error) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	if marked == nil {
		s.origin.watermark = maxSeq(s.origin.watermark, s.watermark)
	}
	for _, id := range s.ids {
		if forgot == nil {
			idx.drop(id)
		} else if e, ok := idx.ids[id]; ok {
			heap.Push(&s.origin.finished, finishedID{e.seq, id})
		}
	}
}

// aged is the result of agedEntries.
type aged struct {
	ids        []proto.TaskID
	tombstones []proto.TaskID
	marks      []settlement // to be on disk before the ids are dropped
}

// agedEntries returns the finished ids that are old and of which every copy is refused
// (I12): those that their origin has settled, and those of an origin that gone reports,
// which nothing is accepted from. The mark of such an origin is raised to cover them.
func (idx *dedupIndex) agedEntries(now int64, gone func(proto.PeerID) bool) (s aged) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	left := map[uint32]bool{}
	raised := map[uint32]proto.Seq{}
	for id, e := range idx.ids {
		if !e.state.Terminal() || !agedOut(e.notAfter, now) {
			continue
		}
		if o := idx.origins[e.origin]; !forgettable(e.seq, o.watermark) {
			away, asked := left[e.origin]
			if !asked {
				away = gone(o.peer)
				left[e.origin] = away
			}
			if !away {
				continue
			}
			raised[e.origin] = maxSeq(raised[e.origin], e.seq)
		}
		s.ids = append(s.ids, id)
	}
	for i, mark := range raised {
		s.marks = append(s.marks, settlement{origin: idx.origins[i], watermark: mark, raised: true})
	}
	for id, b := range idx.tombstones {
		if agedOut(b.notAfter, now) {
			s.tombstones = append(s.tombstones, id)
		}
	}
	return s
}

// dropAged drops what was deleted because of its age.
func (idx *dedupIndex) dropAged(s aged) {
	idx.mu.Lock()
	defer idx.mu.Unlock()
	for _, id := range s.tombstones {
		idx.dropTombstone(id)
	}
	touched := map[uint32]bool{}
	for _, id := range s.ids {
		if e, ok := idx.ids[id]; ok {
			touched[e.origin] = true
			idx.drop(id)
		}
	}
	for i := range touched {
		o := idx.origins[i]
		o.finished = slices.DeleteFunc(o.finished, func(d finishedID) bool { _, ok := idx.ids[d.id]; return !ok })
		heap.Init(&o.finished)
	}
}
