package backlog

import "github.com/balefire/balefire/proto"

// Counts describes a backlog, or one group of it.
type Counts struct {
	Live    int                     // entries that have not ended
	Kept    int                     // entries that have ended and are tombstones
	Bytes   int64                   // size of the initial records of live entries
	ByState map[proto.TaskState]int // live and kept
}

func (t *tally) counts() Counts {
	c := Counts{Live: t.live, Kept: t.kept, Bytes: t.bytes, ByState: map[proto.TaskState]int{}}
	for s, n := range t.states {
		if n != 0 {
			c.ByState[proto.TaskState(s)] = int(n)
		}
	}
	return c
}

// Stats describes the whole backlog.
type Stats struct {
	Counts
	Done, Dead int    // ended entries
	Starved    uint64 // how often a low entry was taken because it had waited too long
}

// Stats returns the current counts.
func (b *Backlog) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Stats{Counts: b.totals.counts(), Done: len(b.done.entries), Dead: len(b.dead.entries), Starved: b.starved}
}

// GroupCounts describes one group.
func (b *Backlog) GroupCounts(name string) Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.groups[name]; g != nil {
		return g.tally.counts()
	}
	return new(tally).counts()
}

// Groups returns the names of the groups that have entries.
func (b *Backlog) Groups() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	for _, g := range b.order {
		if g.tally.live+g.tally.kept > 0 {
			names = append(names, g.name)
		}
	}
	return names
}

// Keys returns the keys of the entries that match, in no order.
func (b *Backlog) Keys(match func(Item) bool) (keys []Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, e := range b.entries {
		if e.place != adding && match(e.item()) {
			keys = append(keys, k)
		}
	}
	return keys
}
