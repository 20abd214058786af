package chain

// Arrivals lets a home decide about a mail while those before it are still being written: it
// counts what was given to the log as if it were there. It is the home's own and on no disk;
// [Home.Take] and [Home.Skip] decide again, from the log alone. Its zero value is empty.
type Arrivals struct {
	chains map[Chain]*arriving
}

// arriving is what of one chain was given to the log and has not come back.
type arriving struct {
	queued int
	last   map[uint64]uint64 // by boot
}

// Check is [Home.Check], except that the mail before it may have been queued only. A mail that
// is queued itself is Next once more: it must not be called accepted before it is durable.
func (a *Arrivals) Check(h *Home, c Chain, it Item) Verdict {
	v := h.Check(c, it)
	if w := a.chains[c]; v == Busy && w != nil && it.Prev.Counter <= w.last[it.Prev.Boot] {
		it.Prev.Boot, it.Prev.Counter = 0, 0
		v = h.Check(c, it)
	}
	return v
}

// Queue notes that a mail, or its refusal, was given to the log.
func (a *Arrivals) Queue(c Chain, it Item) {
	if a.chains == nil {
		a.chains = map[Chain]*arriving{}
	}
	w := a.chains[c]
	if w == nil {
		w = &arriving{last: map[uint64]uint64{}}
		a.chains[c] = w
	}
	w.queued++
	w.last[it.N.Boot] = max(w.last[it.N.Boot], it.N.Counter)
}

// Done notes that what was queued came back from the log. If it was not written, what follows
// in the chain is not counted any more: the origin has to go back.
func (a *Arrivals) Done(c Chain, written bool) {
	w := a.chains[c]
	if w == nil {
		return
	}
	if !written {
		clear(w.last)
	}
	if w.queued--; w.queued == 0 {
		delete(a.chains, c)
	}
}
