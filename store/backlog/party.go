package backlog

import (
	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// A party is whose entries are: within a class each has as many turns as any
// other that waits, however many entries it has. This is start-time fair queueing
// with turns of one size.
type party struct {
	name  string
	turns [fair.Classes]uint64 // the turn of its next entry
}

// parties are all that were seen since the backlog was opened.
type parties struct {
	named map[string]*party
	now   [fair.Classes]uint64 // the turn of the entry that was taken last
}

func (p *parties) partyOf(name string) *party {
	who := p.named[name]
	if who == nil {
		who = &party{name: name}
		p.named[name] = who
	}
	return who
}

// turn is when it is the turn of p: one that did not wait has saved up nothing.
func (p *parties) turn(who *party, class int) uint64 { return max(who.turns[class], p.now[class]) }

// before reports whether it is the turn of a and not of b, both ready in a class.
func (p *parties) before(a, b *entry, class int) bool {
	s, t := p.turn(a.party, class), p.turn(b.party, class)
	return s < t || s == t && a.birth < b.birth
}

// served notes that an entry was taken.
func (p *parties) served(e *entry) {
	c := proto.Class(e.class).Index()
	p.now[c] = p.turn(e.party, c)
	e.party.turns[c] = p.now[c] + 1
}

// nextOf returns the entry of a pool whose turn it is, of a party that sated does
// not name; nil when there is none.
func (p *parties) nextOf(ready *pool, class int, sated func(string) bool) (next *entry) {
	for _, h := range ready.by {
		e := h.first()
		if e != nil && (sated == nil || !sated(e.party.name)) && (next == nil || p.before(e, next, class)) {
			next = e
		}
	}
	return next
}

// A pool holds what is ready in a group and a class, by party, the oldest first.
type pool struct {
	by map[*party]*heap[byBirth] // an empty one stays: its party will be back
	n  int
}

func (p *pool) push(e *entry) {
	h := p.by[e.party]
	if h == nil {
		h = new(heap[byBirth])
		if p.by == nil {
			p.by = map[*party]*heap[byBirth]{}
		}
		p.by[e.party] = h
	}
	h.push(e)
	p.n++
}

func (p *pool) remove(e *entry) {
	p.by[e.party].remove(int(e.pos))
	p.n--
}
