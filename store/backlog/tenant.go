package backlog

import (
	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// A tenant is whose entries are: within a class each has as many turns as any
// other that waits, however many entries it has. This is start-time fair queueing
// with turns of one size.
type tenant struct {
	name     string
	nextTurn [fair.Classes]uint64 // the turn of its next entry
}

// tenants are all that were seen since the backlog was opened.
type tenants struct {
	byName      map[string]*tenant
	virtualTime [fair.Classes]uint64 // the turn of the entry that was taken last
}

func (p *tenants) tenantOf(name string) *tenant {
	t := p.byName[name]
	if t == nil {
		t = &tenant{name: name}
		p.byName[name] = t
	}
	return t
}

// turn is when it is the turn of p: one that did not wait has saved up nothing.
func (p *tenants) turn(t *tenant, class int) uint64 {
	return max(t.nextTurn[class], p.virtualTime[class])
}

// before reports whether it is the turn of a and not of b, both ready in a class.
func (p *tenants) before(a, b *entry, class int) bool {
	s, t := p.turn(a.tenant, class), p.turn(b.tenant, class)
	return s < t || s == t && a.arrival < b.arrival
}

// noteTaken notes that an entry was taken.
func (p *tenants) noteTaken(e *entry) {
	c := proto.Class(e.class).Index()
	p.virtualTime[c] = p.turn(e.tenant, c)
	e.tenant.nextTurn[c] = p.virtualTime[c] + 1
}

// nextOf returns the entry of a pool whose turn it is, of a party that sated does
// not name; nil when there is none.
func (p *tenants) nextOf(ready *pool, class int, overShare func(string) bool) (next *entry) {
	for _, h := range ready.queues {
		e := h.first()
		if e != nil && (overShare == nil || !overShare(e.tenant.name)) && (next == nil || p.before(e, next, class)) {
			next = e
		}
	}
	return next
}

// A pool holds what is ready in a group and a class, by party, the oldest first.
type pool struct {
	queues map[*tenant]*heap[byArrival] // an empty one stays: its party will be back
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
