package chain

import (
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// ErrAnswer is returned for an answer that no home gives to that bundle.
var ErrAnswer = errors.New("chain: bad answer")

// A Bundle is mails of one chain that are sent together.
type Bundle struct {
	Number     uint64 // of this bundle, from 1 in each start of the origin
	To         proto.PeerID
	Box        string
	Generation uint64 // of the home; one of another generation must not take it
	Class      proto.Class
	Prev       proto.Seq // the mail before the first that the spool has; zero: none
	Runs       []Run
	Refs       []uint64 // of the mails, in order
	Size       int      // bytes of their letters
}

// An Answer is what a home says about a bundle.
type Answer struct {
	Number  uint64
	Code    proto.Code // why it did not take the rest; CodeOK: there is none
	UpTo    proto.Seq  // the last mail that it has taken or refused for good; zero: none
	Skipped []Skip     // those that it refused for good, ascending
}

// A Skip is a mail that was refused for good.
type Skip struct {
	N      proto.Seq
	Code   proto.Code
	Detail string // for a person
}

// A Settled is what an answer ends. Mails end in the order of their chain.
type Settled struct {
	Box      string
	Class    proto.Class
	Accepted []uint64 // refs of the mails that the home has
	Refused  []Refusal
	Stopped  proto.Code // why the chain waits for [Origin.Resume]; CodeOK: it does not
}

// A Refusal is a mail that the home refused for good.
type Refusal struct {
	Ref    uint64
	Code   proto.Code
	Detail string // for a person
}

// A flight is a bundle without an answer.
type flight struct {
	to    proto.PeerID
	box   string
	class proto.Class
	runs  []Run
}

// Ready reports whether [Origin.Next] has a bundle.
func (o *Origin) Ready(box string, class proto.Class) bool {
	t := o.targets[box]
	if t == nil || t.home.IsZero() {
		return false
	}
	s := t.spool(class)
	return s.stopped == none && s.next < len(s.items) && s.items[s.next].stored
}

// Next returns the next mails of a chain, which count as sent from now on; false if nothing
// may be sent. Their letters have at most room bytes, but a larger one may go alone.
func (o *Origin) Next(box string, class proto.Class, room int) (Bundle, bool) {
	if !o.Ready(box, class) {
		return Bundle{}, false
	}
	t := o.targets[box]
	s := t.spool(class)
	o.bundles++
	b := Bundle{Number: o.bundles, To: t.home, Box: box, Generation: t.generation, Class: proto.Critical + proto.Class(class.Index())}
	if s.next > 0 {
		b.Prev = s.items[s.next-1].n
	}
	for ; s.next < len(s.items) && len(b.Refs) < MaxBundle; s.next++ {
		it := &s.items[s.next]
		if !it.stored || len(b.Refs) > 0 && b.Size+it.Size > min(room, MaxBundleBytes) {
			break
		}
		it.maySent = true
		b.Runs, b.Refs, b.Size = appendRun(b.Runs, it.n), append(b.Refs, it.Ref), b.Size+it.Size
	}
	o.flights[b.Number] = &flight{to: b.To, box: box, class: b.Class, runs: b.Runs}
	return b, true
}

// Answer takes the answer of a home into account. One to a bundle that is not expected, or no
// longer, changes nothing. The error is ErrAnswer.
func (o *Origin) Answer(from proto.PeerID, a Answer) (Settled, error) {
	f := o.flights[a.Number]
	if f == nil {
		return Settled{}, nil
	}
	if err := f.check(from, a); err != nil {
		return Settled{}, err
	}
	delete(o.flights, a.Number)
	t := o.targets[f.box]
	s := t.spool(f.class)
	s.settle(f, a)
	out := Settled{Box: f.box, Class: f.class, Stopped: a.Code}
	t.release(s, &out)
	if a.Code != none {
		s.stopped = a.Code
		o.rewindSpool(f.box, f.class)
	}
	return out, nil
}

// Expects reports whether an answer to a bundle is expected.
func (o *Origin) Expects(number uint64) bool { return o.flights[number] != nil }

// Unanswered reports whether an answer of a home to a bundle with at most this number is
// expected.
func (o *Origin) Unanswered(home proto.PeerID, number uint64) bool {
	for n, f := range o.flights {
		if n <= number && f.to == home {
			return true
		}
	}
	return false
}

// check checks an answer to f.
func (f *flight) check(from proto.PeerID, a Answer) error {
	last := f.runs[len(f.runs)-1]
	_, ends := a.Code.Ends() // such a mail is refused, and the chain goes on
	end := proto.Seq{Boot: last.Boot, Counter: last.last()}
	switch {
	case from != f.to:
		return fmt.Errorf("%w: bundle %d went to another node", ErrAnswer, a.Number)
	case a.UpTo != proto.Seq{} && !f.has(a.UpTo):
		return fmt.Errorf("%w: %s is not in bundle %d", ErrAnswer, a.UpTo, a.Number)
	case (a.Code == none) != (a.UpTo == end) || ends:
		return fmt.Errorf("%w: code %s up to %s of %s", ErrAnswer, a.Code.Name(), a.UpTo, end)
	}
	before := proto.Seq{}
	for _, s := range a.Skipped {
		_, ends := s.Code.Ends()
		if !ends || !f.has(s.N) || s.N.Compare(a.UpTo) > 0 || s.N.Compare(before) <= 0 {
			return fmt.Errorf("%w: %s refused with %s", ErrAnswer, s.N, s.Code.Name())
		}
		before = s.N
	}
	return nil
}

// has reports whether the bundle has the mail n.
func (f *flight) has(n proto.Seq) bool {
	return slices.ContainsFunc(f.runs, func(r Run) bool {
		return r.Boot == n.Boot && r.First <= n.Counter && n.Counter <= r.last()
	})
}

// settle marks the mails that a answers.
func (s *spool) settle(f *flight, a Answer) {
	at, _ := s.find(proto.Seq{Boot: f.runs[0].Boot, Counter: f.runs[0].First})
	skipped := a.Skipped
	for ; at < len(s.items) && s.items[at].n.Compare(a.UpTo) <= 0; at++ {
		it := &s.items[at]
		for len(skipped) > 0 && skipped[0].N.Compare(it.n) < 0 {
			skipped = skipped[1:]
		}
		if it.answered = true; len(skipped) > 0 && skipped[0].N == it.n {
			it.refusal = &skipped[0]
		}
	}
}

// release ends the answered mails at the front of the chain. One behind a mail that the home
// may not have taken stays: should the box lose its home, all of the chain from the first
// mail without an answer goes to the next one.
func (t *target) release(s *spool, out *Settled) {
	done := 0
	for ; done < len(s.items) && s.items[done].answered; done++ {
		it := &s.items[done]
		if it.refusal == nil {
			out.Accepted = append(out.Accepted, it.Ref)
		} else {
			out.Refused = append(out.Refused, Refusal{it.Ref, it.refusal.Code, it.refusal.Detail})
		}
		t.ended(it)
	}
	clear(s.items[:done])
	s.items, s.next = s.items[done:], max(s.next-done, 0)
}

// Resume lets a chain go on that the home stopped.
func (o *Origin) Resume(box string, class proto.Class) { o.spool(box, class).stopped = none }

// Reset makes everything for a box ready to be sent again, because the connection to its home
// was lost or no answer came. Earlier bundles are not expected to be answered any more.
func (o *Origin) Reset(box string) {
	if t := o.targets[box]; t != nil {
		o.rewind(t)
	}
}

func (o *Origin) rewind(t *target) {
	for class := proto.Critical; class <= classes; class++ {
		o.rewindSpool(t.box, class)
	}
}

// rewindSpool goes back to the front of a chain.
func (o *Origin) rewindSpool(box string, class proto.Class) {
	s := o.spool(box, class)
	for i := range s.items[:s.next] {
		s.items[i].answered, s.items[i].refusal = false, nil
	}
	s.next = 0
	for number, f := range o.flights {
		if f.box == box && f.class == class {
			delete(o.flights, number)
		}
	}
}
