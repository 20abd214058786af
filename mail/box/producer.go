package box

import (
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
)

// Limits of producers.
const (
	MaxProducers = 10_000         // of a state; the one that was used the longest ago is forgotten for another
	producerAge  = 24 * time.Hour // of running time, after which a producer that sent nothing is forgotten
)

// producers are the programs of this node that number their mails, and the numbers that were
// taken from each. They survive, as the mails do.
type producers struct {
	byID           map[proto.ProducerID]*producer
	oldest, newest *producer // by their last use
	limit          int       // a test may have a lower one; default MaxProducers
}

// A producer is what is known of the mails of one producer: of the last
// [proto.ProducerWindow] numbers up to the highest one, which were taken.
type producer struct {
	id           proto.ProducerID
	last         uint64 // the highest number that was taken
	used         int64  // running time of its last mail, in milliseconds
	older, newer *producer
	taken        producerWindow
}

// A producerWindow has a bit for each number: that of n is n modulo its size.
type producerWindow [proto.ProducerWindow / 64]uint64

func (w *producerWindow) has(n uint64) bool { return w[n/64%uint64(len(w))]>>(n%64)&1 != 0 }
func (w *producerWindow) set(n uint64)      { w[n/64%uint64(len(w))] |= 1 << (n % 64) }
func (w *producerWindow) clear(n uint64)    { w[n/64%uint64(len(w))] &^= 1 << (n % 64) }

// again returns the answer to a mail whose number was taken, or may have been: it is not for
// its box to decide about. A mail that came from another node is new: its chain decides.
func (s *State) again(m *Mail, l *proto.Letter) (r Result, again bool) {
	if m.Origin != 0 || l.Produced.Number == 0 {
		return r, false
	}
	p := s.producers.byID[l.Produced.Producer]
	switch n := l.Produced.Number; {
	case p == nil || n > p.last:
		return r, false
	case p.last-n >= proto.ProducerWindow:
		detail := fmt.Sprintf("number %d of its producer is %d behind the newest one: whether it was taken is known of the last %d", n, p.last-n, proto.ProducerWindow)
		return Result{Code: proto.CodeExpired, ForGood: true, Detail: detail}, true
	case p.taken.has(n):
		return Result{Duplicate: true}, true
	}
	return r, false
}

// produced notes that a mail of this node was taken.
func (s *State) produced(l *proto.Letter) {
	if l.Produced.Number > 0 {
		s.producers.take(l.Produced, s.ranPast+s.ran)
	}
}

// take notes a number that was not taken before and is not behind the window. Ran is the
// running time in milliseconds.
func (x *producers) take(number proto.Produced, ran int64) {
	p := x.byID[number.Producer]
	if p == nil {
		if len(x.byID) >= or(x.limit, MaxProducers) {
			x.forget(x.oldest)
		}
		p = &producer{id: number.Producer}
		x.add(p)
	} else if p != x.newest {
		x.unlink(p)
		x.link(p)
	}
	p.used = ran
	if n := number.Number; n > p.last {
		if n-p.last >= proto.ProducerWindow {
			p.taken = producerWindow{}
		} else {
			for between := p.last + 1; between < n; between++ {
				p.taken.clear(between)
			}
		}
		p.last = n
	}
	p.taken.set(number.Number)
}

// add adds a producer as the newest one.
func (x *producers) add(p *producer) {
	if x.byID == nil {
		x.byID = map[proto.ProducerID]*producer{}
	}
	x.byID[p.id] = p
	x.link(p)
}

func (x *producers) forget(p *producer) {
	delete(x.byID, p.id)
	x.unlink(p)
}

func (x *producers) link(p *producer) {
	p.older, p.newer = x.newest, nil
	if x.newest == nil {
		x.oldest = p
	} else {
		x.newest.newer = p
	}
	x.newest = p
}

func (x *producers) unlink(p *producer) {
	if p.older == nil {
		x.oldest = p.newer
	} else {
		p.older.newer = p.newer
	}
	if p.newer == nil {
		x.newest = p.older
	} else {
		p.newer.older = p.older
	}
}

// age forgets producers that sent nothing for long.
func (x *producers) age(ran int64) {
	for x.oldest != nil && ran-x.oldest.used >= producerAge.Milliseconds() {
		x.forget(x.oldest)
	}
}

// words returns how many words of the window of a producer can have bits.
func (p *producer) words() int { return int(min(p.last/64+1, uint64(len(p.taken)))) }

// producers writes the producers, the one that was used the longest ago first.
func (c *saver) producers(x *producers) {
	c.count(len(x.byID))
	for p := x.oldest; p != nil; p = p.newer {
		c.b = append(c.b, p.id[:]...)
		c.u64(p.last)
		c.u64(uint64(p.used))
		for _, w := range p.taken[:p.words()] {
			c.u64(w)
		}
		c.flush(1 << 16)
	}
}

func (d *decoder) producers(x *producers) {
	for range d.count(40, MaxProducers) {
		p := &producer{id: d.array16(), last: d.u64(), used: d.time()}
		for i := range p.words() {
			p.taken[i] = d.u64()
		}
		d.check(p.id != proto.ProducerID{} && p.last > 0 && p.last < 1<<63 && x.byID[p.id] == nil && p.taken.has(p.last))
		if d.check(p.last >= proto.ProducerWindow || p.taken[0]&1 == 0 && p.taken[p.last/64]>>(p.last%64) == 1); d.failed {
			return
		}
		x.add(p)
	}
}
