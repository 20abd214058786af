package backlog

import (
	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// A tenant owns entries: within a class each waiting tenant gets as many turns as
// any other, however many entries it has. This is start-time fair queueing with
// turns of equal size.
type tenant struct {
	name     string
	nextTurn [fair.Classes]uint64 // the turn of its next entry
}

// tenants holds all tenants seen since the backlog was opened.
type tenants struct {
	byName      map[string]*tenant
	virtualTime [fair.Classes]uint64 // the turn of the entry that was taken last
}

func (p *tenants) of(name string) *tenant {
	t := p.byName[name]
	if t == nil {
		t = &tenant{name: name}
		p.byName[name] = t
	}
	return t
}

// turn returns the next turn of t: a tenant that was not waiting has saved up
// none.
func (p *tenants) turn(t *tenant, class int) uint64 {
	return max(t.nextTurn[class], p.virtualTime[class])
}

// before reports whether a is to be taken before b, both ready in a class.
func (p *tenants) before(a, b *entry, class int) bool {
	s, t := p.turn(a.tenant, class), p.turn(b.tenant, class)
	return s < t || s == t && a.arrival < b.arrival
}

// noteTaken records that an entry was taken.
func (p *tenants) noteTaken(e *entry) {
	c := proto.Class(e.class).Index()
	p.virtualTime[c] = p.turn(e.tenant, c)
	e.tenant.nextTurn[c] = p.virtualTime[c] + 1
}

// nextOf returns the entry of a pool to take next, of a tenant that is not over
// its share; nil if there is none.
func (p *tenants) nextOf(ready *pool, class int, overShare func(string) bool) (next *entry) {
	for _, h := range ready.queues {
		e := h.first()
		if e != nil && (overShare == nil || !overShare(e.tenant.name)) && (next == nil || p.before(e, next, class)) {
			next = e
		}
	}
	return next
}

// A pool holds the ready entries of a group and a class, by tenant, oldest first.
type pool struct {
	queues map[*tenant]*heap[byArrival] // an empty one stays: its tenant will be back
	n      int
}

func (p *pool) push(e *entry) {
	h := p.queues[e.tenant]
	if h == nil {
		h = new(heap[byArrival])
		if p.queues == nil {
			p.queues = map[*tenant]*heap[byArrival]{}
		}
		p.queues[e.tenant] = h
	}
	h.push(e)
	p.n++
}

func (p *pool) remove(e *entry) {
	p.queues[e.tenant].remove(int(e.pos))
	p.n--
}
