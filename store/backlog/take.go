package backlog

import (
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// Take takes up to n due entries of the group, shared among the classes, and
// appends them to dst. The caller owns them until it calls Change or Release for
// them.
func (b *Backlog) Take(dst []Item, name string, n int) []Item {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[name]
	if g == nil || n <= 0 {
		return dst
	}
	b.followWall()
	b.promoteDue(g)
	for range n {
		waits := g.waits()
		c := g.picker.Next(waits)
		if c < 0 {
			break
		}
		if g.picker.Took(c, waits) {
			b.starved++
		}
		dst = append(dst, b.take(b.tenants.nextOf(&g.ready[c], c, nil)))
	}
	return dst
}

// TakeAny takes the most urgent due entry of all groups for which eligible
// returns true, nil all. Within a class the tenants take turns; those for which
// overShare returns true, nil none, get theirs only while no other is waiting.
// Both functions are called under a lock and must not call back.
func (b *Backlog) TakeAny(eligible, overShare func(name string) bool) (Item, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.followWall()
	if overShare != nil {
		if item, ok := b.takeAny(eligible, overShare); ok {
			return item, true
		}
	}
	return b.takeAny(eligible, nil)
}

// takeAny is TakeAny without the tenants over their share. The caller holds mu.
func (b *Backlog) takeAny(eligible, overShare func(name string) bool) (Item, bool) {
	var first [fair.Classes]*entry
	var waits [fair.Classes]bool
	for _, g := range b.order {
		b.promoteDue(g)
		asked := false
		for c := range first {
			e := b.tenants.nextOf(&g.ready[c], c, overShare)
			if e == nil || first[c] != nil && !b.tenants.before(e, first[c], c) {
				continue
			}
			if !asked && eligible != nil && !eligible(g.name) {
				break
			}
			asked = true
			first[c], waits[c] = e, true
		}
	}
	c := b.picker.Next(waits)
	if c < 0 {
		return Item{}, false
	}
	if b.picker.Took(c, waits) {
		b.starved++
	}
	return b.take(first[c]), true
}

// waits returns which classes of g have a ready entry.
func (g *group) waits() (w [fair.Classes]bool) {
	for c := range w {
		w[c] = g.ready[c].n > 0
	}
	return w
}

// promoteDue makes the due entries of g ready.
func (b *Backlog) promoteDue(g *group) {
	if g.waiting.len() == 0 {
		return
	}
	for now := b.now(); ; {
		e := g.waiting.first()
		if e == nil || e.due > now {
			return
		}
		g.waiting.remove(0)
		b.makeReady(e)
	}
}

func (b *Backlog) take(e *entry) Item {
	b.dequeue(e)
	b.tenants.noteTaken(e)
	e.place = taken
	return e.item()
}

// Release returns a taken entry, to be taken again after wait. Nothing is
// written. It reports whether the entry was taken.
func (b *Backlog) Release(k Key, wait time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[k]
	if e == nil || e.place != taken {
		return false
	}
	e.due, e.absolute = b.now()+max(wait, 0).Milliseconds(), false
	if e.busy {
		e.place = changing // until the change is written
		return true
	}
	b.enqueue(e)
	return true
}

// MakeDue makes the waiting entries of a group due, for example after a link came
// back. spread returns the wait of each, negative to leave it as it is; it is
// called under a lock and must not call back. Entries with a due time that the
// task asked for keep it.
func (b *Backlog) MakeDue(name string, spread func(Key) time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[name]
	if g == nil {
		return
	}
	now := b.now()
	for _, e := range g.waiting.items {
		if e.absolute {
			continue
		}
		if wait := spread(e.key); wait >= 0 {
			e.due = min(e.due, now+wait.Milliseconds())
		}
	}
	g.waiting.init()
	b.wakeGroup(g)
}

// WakeGroup wakes the reader of Wake for the group, and that of WakeAny.
func (b *Backlog) WakeGroup(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wakeGroup(b.groupNamed(name))
}

// Wake returns a channel that receives a token once Take of the group may return
// more than before. It is meant for a single reader.
func (b *Backlog) Wake(name string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.groupNamed(name).wake
}

// WakeAny is Wake for TakeAny.
func (b *Backlog) WakeAny() <-chan struct{} { return b.wake }

// Next returns how long until an entry of the group is due, 0 if one is ready; ok
// is false if none is waiting.
func (b *Backlog) Next(name string) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[name]
	if g == nil {
		return 0, false
	}
	b.followWall()
	return b.next(g)
}

// NextAny is Next over all groups for which eligible returns true, nil all.
func (b *Backlog) NextAny(eligible func(group string) bool) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.followWall()
	for _, g := range b.order {
		w, some := b.next(g)
		if some && (!ok || w < wait) && (eligible == nil || eligible(g.name)) {
			wait, ok = w, true
		}
	}
	return wait, ok
}

func (b *Backlog) next(g *group) (time.Duration, bool) {
	if g.waits() != [fair.Classes]bool{} {
		return 0, true
	}
	if e := g.waiting.first(); e != nil {
		return time.Duration(max(e.due-b.now(), 0)) * time.Millisecond, true
	}
	return 0, false
}

// maxDrift is how far the wall clock may drift from the steadyClock, in
// milliseconds, before due times that tasks asked for are recalculated.
const maxDrift = 10_000

// followWall adjusts the entries due at a wall-clock time after the wall clock has
// jumped, also those that do not wait for it yet.
func (b *Backlog) followWall() {
	drift := b.cfg.Clock.Now().UnixMilli() - b.now()
	delta := drift - b.drift
	if delta > -maxDrift && delta < maxDrift {
		return
	}
	b.drift = drift
	for _, e := range b.entries {
		if e.absolute {
			e.due -= delta
		}
	}
	for _, g := range b.order {
		g.waiting.init()
	}
}

// TakeExpired appends to dst up to n entries that have expired by the wall clock,
// in any place, and returns each again after the given pause unless it has ended
// by then. The caller decides with Change what to do with them. While the wall
// clock is doubted there are none (I14).
func (b *Backlog) TakeExpired(dst []Item, n int, again time.Duration) []Item {
	now := b.cfg.Clock.Now().UnixMilli()
	if b.cfg.Clock.Doubted() {
		return dst
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for range n {
		e := b.expiry.first()
		if e == nil || e.expires > now {
			break
		}
		dst = append(dst, e.item())
		e.expires = now + max(again.Milliseconds(), 1)
		b.expiry.fix(int(e.xpos))
	}
	return dst
}

// Postpone makes TakeExpired return the entry no earlier than at.
func (b *Backlog) Postpone(k Key, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[k]; e != nil && e.xpos >= 0 {
		e.expires = at.UnixMilli()
		b.expiry.fix(int(e.xpos))
	}
}

// NextExpiry returns when the next entry expires; ok is false if none does, or
// the wall clock is doubted.
func (b *Backlog) NextExpiry() (at time.Time, ok bool) {
	if b.cfg.Clock.Doubted() {
		return time.Time{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.expiry.first()
	if e == nil {
		return time.Time{}, false
	}
	return time.UnixMilli(e.expires), true
}

// Peek returns the entry as it is in memory.
func (b *Backlog) Peek(k Key) (Item, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[k]
	if e == nil || e.place == adding {
		return Item{}, false
	}
	return e.item(), true
}

// A Place describes, for people, what an entry is waiting for.
type Place struct {
	Status  string        // behind, waiting, ready, taken, parked, held
	Wait    time.Duration // of a waiting entry: until it is due
	Behind  proto.TaskID  // of an entry that is behind another: the first of its lane
	Blocked bool          // that first entry is dead, and the lane waits for a person
}

// Where returns the place of an entry; ok is false if there is no such entry.
func (b *Backlog) Where(k Key) (p Place, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[k]
	if e == nil || e.place == adding {
		return p, false
	}
	p.Status = [...]string{queuedBehind: "behind", waiting: "waiting", ready: "ready", taken: "taken", parked: "parked", changing: "held"}[e.place]
	switch e.place {
	case waiting:
		p.Wait = time.Duration(max(e.due-b.now(), 0)) * time.Millisecond
	case queuedBehind:
		first := e.lane.entries[0]
		p.Behind, p.Blocked = first.key.ID, first.place == blocking
	}
	return p, true
}
