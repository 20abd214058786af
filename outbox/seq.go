package outbox

import (
	"slices"
	"sort"
	"sync"

	"github.com/balefire/balefire/proto"
)

// seqs hands out the sequences and knows which are outstanding. One counter
// serves all targets, so that the sequences of this home also order its tasks
// among each other; towards one target they rise with gaps, and a gap is settled.
type seqs struct {
	mu     *sync.Mutex
	last   proto.Seq
	tracks map[proto.PeerID]*track
}

// A track holds what is outstanding towards one target, ascending. What is
// settled leaves it when it comes to the front.
type track struct {
	slots   []slot
	settled int // slots that are settled
}

type slot struct {
	seq  proto.Seq
	done bool
}

func newSeqs(boot uint64) seqs {
	return seqs{mu: new(sync.Mutex), last: proto.Seq{Boot: boot}, tracks: map[proto.PeerID]*track{}}
}

func (s *seqs) track(p proto.PeerID) *track {
	t := s.tracks[p]
	if t == nil {
		t = new(track)
		s.tracks[p] = t
	}
	return t
}

// found takes up a sequence of an earlier start. sort must follow.
func (s *seqs) found(p proto.PeerID, seq proto.Seq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.track(p)
	t.slots = append(t.slots, slot{seq: seq})
}

// sort orders what was found.
func (s *seqs) sort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tracks {
		slices.SortFunc(t.slots, func(a, b slot) int { return a.seq.Compare(b.seq) })
	}
}

func (s *seqs) next(p proto.PeerID) proto.Seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.Counter++
	t := s.track(p)
	t.slots = append(t.slots, slot{seq: s.last})
	return s.last
}

// settle notes that nothing of this sequence will be sent any more.
func (s *seqs) settle(p proto.PeerID, seq proto.Seq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tracks[p]
	if t == nil {
		return
	}
	i := sort.Search(len(t.slots), func(i int) bool { return t.slots[i].seq.Compare(seq) >= 0 })
	if i == len(t.slots) || t.slots[i].seq != seq || t.slots[i].done {
		return
	}
	t.slots[i].done = true
	t.settled++
	t.trim()
	if len(t.slots) == 0 {
		delete(s.tracks, p)
	}
}

// trim drops what is settled from the front, and from everywhere once it is the
// larger part: one old task must not make those behind it cost memory.
func (t *track) trim() {
	n := 0
	for n < len(t.slots) && t.slots[n].done {
		n++
	}
	t.slots = t.slots[n:]
	t.settled -= n
	if t.settled > 1024 && t.settled > len(t.slots)/2 {
		t.slots = slices.Clip(slices.DeleteFunc(t.slots, func(s slot) bool { return s.done }))
		t.settled = 0
	}
}

// mark returns the highest sequence up to which everything is settled.
func (s *seqs) mark(p proto.PeerID) proto.Seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tracks[p]
	if t == nil || len(t.slots) == 0 {
		return s.last
	}
	m := t.slots[0].seq
	if m.Counter == 0 {
		return proto.Seq{}
	}
	m.Counter-- // of the same boot: whatever is below it is settled
	return m
}

// count returns how many are outstanding towards p.
func (s *seqs) count(p proto.PeerID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tracks[p]; t != nil {
		return len(t.slots) - t.settled
	}
	return 0
}
