package box

import (
	"math/bits"
	"slices"
	"sort"

	"github.com/balefire/balefire/proto"
)

// A mail is what memory keeps of a mail, in 32 bytes without pointers.
type mail struct {
	place    Place
	load     uint32 // class 2 bits | bytes of the record before the letter 7 | tells 1 | bytes of the letter 22
	expiry   uint32 // Unix seconds, rounded up: it is not delivered then or later
	accepted uint32 // Unix seconds
	key      uint32 // index in the table of keys; 0: no key
	origin   uint32 // index of the node that it came from; 0: this node
	subject  uint32 // index in the table of subjects; 0: no subject
}

const (
	classShift  = 30
	beforeShift = 23
	tellsBit    = 1 << 22 // its sender wants to know when it is done
)

// newLoad packs class, length of the record and length of its letter.
func newLoad(class, record, letter int) uint32 {
	return uint32(class)<<classShift | uint32(record-letter)<<beforeShift | uint32(letter)
}

func (m *mail) class() int   { return int(m.load >> classShift) }
func (m *mail) bytes() int64 { return int64(m.load & (tellsBit - 1)) }
func (m *mail) tells() bool  { return m.load&tellsBit != 0 }

// length returns the length of the record at the place of the mail.
func (m *mail) length() int {
	return int(m.load>>beforeShift&(1<<(classShift-beforeShift)-1)) + int(m.bytes())
}

// validLength reports whether a MAIL or MOVE with a letter can have that length.
func validLength(record, letter int64) bool {
	switch record - letter {
	case localSize, mailSize, moveSize + localSize, moveSize + mailSize,
		localSize + causeSize, mailSize + causeSize, moveSize + localSize + causeSize, moveSize + mailSize + causeSize:
		return letter >= proto.LetterFixed && letter <= proto.MaxLetter
	}
	return false
}

// chunkSize is how many sequences a chunk covers.
const chunkSize = 64

// A chunk has the mails of chunkSize sequences that are still there, in order: mail i of
// the chunk has the sequence of the i-th bit that is set.
type chunk struct {
	base  uint64 // a multiple of chunkSize
	there uint64 // bit n: the mail base + n is there
	mails []mail
}

// index returns where the mail of seq is, or would be.
func (c *chunk) index(seq uint64) int {
	return bits.OnesCount64(c.there & (1<<(seq-c.base) - 1))
}

// mailList has the waiting mails of a box by sequence.
type mailList struct {
	chunks []chunk // ascending; only the last one may be empty
	count  int
	spare  []mail // of a chunk that was removed, or nil
}

// find returns the index of the chunk that covers seq, or of the next one.
func (l *mailList) find(seq uint64) int {
	base := seq &^ (chunkSize - 1)
	return sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].base >= base })
}

// get returns the mail of seq, or nil. The pointer is valid until the next change.
func (l *mailList) get(seq uint64) *mail {
	i := l.find(seq)
	if i == len(l.chunks) || seq < l.chunks[i].base || l.chunks[i].there>>(seq-l.chunks[i].base)&1 == 0 {
		return nil
	}
	return &l.chunks[i].mails[l.chunks[i].index(seq)]
}

// push adds a mail, whose sequence is the highest.
func (l *mailList) push(seq uint64, m mail) {
	base := seq &^ (chunkSize - 1)
	switch n := len(l.chunks); {
	case n > 0 && l.chunks[n-1].base == base:
	case n > 0 && l.chunks[n-1].there == 0:
		l.chunks[n-1].base = base
	default:
		if l.spare == nil {
			l.spare = make([]mail, 0, chunkSize)
		}
		l.chunks = append(l.chunks, chunk{base: base, mails: l.spare})
		l.spare = nil
	}
	c := &l.chunks[len(l.chunks)-1]
	c.there |= 1 << (seq - base)
	c.mails = append(c.mails, m)
	l.count++
}

// insert adds a mail, whose sequence is not there.
func (l *mailList) insert(seq uint64, m mail) {
	base, i, last := seq&^(chunkSize-1), l.find(seq), len(l.chunks)-1
	switch {
	case i > last:
		l.push(seq, m)
		return
	case l.chunks[i].base == base:
	case l.chunks[i].there == 0: // it is the last one
		l.chunks[i].base = base
	default:
		l.chunks = slices.Insert(l.chunks, i, chunk{base: base})
	}
	c := &l.chunks[i]
	c.mails = slices.Insert(c.mails, c.index(seq), m)
	c.there |= 1 << (seq - base)
	l.count++
}

// remove removes the mail of seq, which is there.
func (l *mailList) remove(seq uint64) {
	i := l.find(seq)
	c := &l.chunks[i]
	at := c.index(seq)
	c.mails = slices.Delete(c.mails, at, at+1)
	c.there &^= 1 << (seq - c.base)
	l.count--
	switch last := len(l.chunks) - 1; {
	case len(c.mails) == 0 && i == last: // it is used again: a box that is mostly empty makes no garbage
	case len(c.mails) == 0:
		if cap(c.mails) == chunkSize {
			l.spare = c.mails
		}
		if i > 0 {
			l.chunks = slices.Delete(l.chunks, i, i+1)
			break
		}
		l.chunks[0] = chunk{}
		l.chunks = l.chunks[1:]
	case i < last && cap(c.mails) >= 16 && len(c.mails)*4 <= cap(c.mails):
		old := c.mails
		if c.mails = slices.Clip(append(make([]mail, 0, len(old)), old...)); cap(old) == chunkSize {
			l.spare = old[:0]
		}
	}
}

// next returns the first mail at or after seq, or nil.
func (l *mailList) next(seq uint64) (uint64, *mail) {
	for i := l.find(seq); i < len(l.chunks); i++ {
		c := &l.chunks[i]
		rest := c.there
		if seq > c.base {
			rest &^= 1<<(seq-c.base) - 1
		}
		if rest != 0 {
			at := c.base + uint64(bits.TrailingZeros64(rest))
			return at, &c.mails[c.index(at)]
		}
	}
	return 0, nil
}

// A span is the sequences from first to before end.
type span struct{ first, end uint64 }

// A seqSet is a set of sequences, as spans that do not touch.
type seqSet []span

func (s seqSet) has(seq uint64) bool {
	i := sort.Search(len(s), func(i int) bool { return s[i].end > seq })
	return i < len(s) && s[i].first <= seq
}

// add adds the sequences from first to before end.
func (s *seqSet) add(first, end uint64) {
	if first >= end {
		return
	}
	list := *s
	i := sort.Search(len(list), func(i int) bool { return list[i].end >= first })
	j := i
	for j < len(list) && list[j].first <= end {
		first, end = min(first, list[j].first), max(end, list[j].end)
		j++
	}
	*s = slices.Replace(list, i, j, span{first, end})
}

// cut removes the sequences before seq.
func (s *seqSet) cut(seq uint64) {
	list := *s
	n := sort.Search(len(list), func(i int) bool { return list[i].end > seq })
	list = slices.Delete(list, 0, n)
	if len(list) > 0 {
		list[0].first = max(list[0].first, seq)
	}
	*s = list
}

// A table gives each value that is in use a number from 1, and counts its uses.
type table[K comparable] struct {
	ids  map[K]uint32
	list []used[K] // by number - 1
	free []uint32
}

type used[K comparable] struct {
	value K
	uses  uint32
}

// use returns the number of v, with one use more.
func (t *table[K]) use(v K) uint32 {
	id, ok := t.ids[v]
	if !ok {
		if n := len(t.free); n > 0 {
			id, t.free = t.free[n-1], t.free[:n-1]
		} else {
			t.list = append(t.list, used[K]{})
			id = uint32(len(t.list))
		}
		if t.ids == nil {
			t.ids = map[K]uint32{}
		}
		t.ids[v], t.list[id-1].value = id, v
	}
	t.list[id-1].uses++
	return id
}

// drop ends one use of a number; 0 is nothing.
func (t *table[K]) drop(id uint32) {
	if id == 0 {
		return
	}
	u := &t.list[id-1]
	if u.uses--; u.uses == 0 {
		delete(t.ids, u.value)
		*u = used[K]{}
		t.free = append(t.free, id)
	}
}

// value returns the value of a number; the zero value for 0.
func (t *table[K]) value(id uint32) (v K) {
	if id == 0 {
		return v
	}
	return t.list[id-1].value
}

// seqHeap is a heap of sequences, the lowest first.
type seqHeap []uint64

func (h *seqHeap) push(seq uint64) {
	a := append(*h, seq)
	i := len(a) - 1
	for i > 0 && a[(i-1)/2] > seq {
		a[i] = a[(i-1)/2]
		i = (i - 1) / 2
	}
	a[i] = seq
	*h = a
}

func (h *seqHeap) pop() uint64 {
	a := *h
	top, last := a[0], a[len(a)-1]
	a = a[:len(a)-1]
	i := 0
	for {
		c := 2*i + 1
		if c >= len(a) {
			break
		}
		if c+1 < len(a) && a[c+1] < a[c] {
			c++
		}
		if last <= a[c] {
			break
		}
		a[i] = a[c]
		i = c
	}
	if len(a) > 0 {
		a[i] = last
	}
	if *h = a; len(a) == 0 && cap(a) > 4*chunkSize {
		*h = nil
	}
	return top
}
