package outbox

import (
	"slices"
	"sort"
	"sync"

	"github.com/balefire/balefire/proto"
)

// seqs assigns sequences and tracks which are outstanding. One counter serves all
// targets, so that the sequences also order the tasks of this home among each
// other. Per target they rise with gaps, and a gap counts as settled.
type seqs struct {
	mu      *sync.Mutex
	last    proto.Seq
	targets map[proto.PeerID]*targetSeqs
}

// targetSeqs holds the outstanding sequences for one target, ascending. Settled
// ones are removed when they reach the front.
type targetSeqs struct {
	entries []seqEntry
	settled int // number of settled entries
}

type seqEntry struct {
	seq  proto.Seq
	done bool
}

func newSeqs(boot uint64) seqs {
	return seqs{mu: new(sync.Mutex), last: proto.Seq{Boot: boot}, targets: map[proto.PeerID]*targetSeqs{}}
}

func (s *seqs) targetOf(p proto.PeerID) *targetSeqs {
	t := s.targets[p]
	if t == nil {
		t = new(targetSeqs)
		s.targets[p] = t
	}
	return t
}

// found adds a sequence of an earlier start. sort must follow.
func (s *seqs) found(p proto.PeerID, seq proto.Seq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targetOf(p)
	t.entries = append(t.entries, seqEntry{seq: seq})
}

// sort orders the sequences that were found.
func (s *seqs) sort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.targets {
		slices.SortFunc(t.entries, func(a, b seqEntry) int { return a.seq.Compare(b.seq) })
	}
}

func (s *seqs) next(p proto.PeerID) proto.Seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.Counter++
	t := s.targetOf(p)
	t.entries = append(t.entries, seqEntry{seq: s.last})
	return s.last
}

// settle records that nothing with this sequence will be sent any more.
func (s *seqs) settle(p proto.PeerID, seq proto.Seq) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[p]
	if t == nil {
		return
	}
	i := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].seq.Compare(seq) >= 0 })
	if i == len(t.entries) || t.entries[i].seq != seq || t.entries[i].done {
		return
	}
	t.entries[i].done = true
	t.settled++
	t.trim()
	if len(t.entries) == 0 {
		delete(s.targets, p)
	}
}

// trim removes settled entries from the front, and from everywhere once most are
// settled: one old task must not make all later ones cost memory.
func (t *targetSeqs) trim() {
	n := 0
	for n < len(t.entries) && t.entries[n].done {
		n++
	}
	t.entries = t.entries[n:]
	t.settled -= n
	if t.settled > 1024 && t.settled > len(t.entries)/2 {
		t.entries = slices.Clip(slices.DeleteFunc(t.entries, func(s seqEntry) bool { return s.done }))
		t.settled = 0
	}
}

// mark returns the highest sequence up to which everything is settled.
func (s *seqs) mark(p proto.PeerID) proto.Seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[p]
	if t == nil || len(t.entries) == 0 {
		return s.last
	}
	m := t.entries[0].seq
	if m.Counter == 0 {
		return proto.Seq{}
	}
	m.Counter-- // of the same boot: everything below it is settled
	return m
}
