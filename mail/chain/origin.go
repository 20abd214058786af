package chain

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/balefire/balefire/proto"
)

// ErrBoot is returned for a mail on disk whose number this start may give again.
var ErrBoot = errors.New("chain: the boot number is not above those on disk")

// ErrOrder is returned for mails on disk whose numbers do not rise.
var ErrOrder = errors.New("chain: numbers out of order")

// A Mail is what an [Origin] needs to know of a mail in a spool.
type Mail struct {
	Ref      uint64      // names it to the caller; see also Stored
	Class    proto.Class // its own; unspecified: normal
	Key      string      // its ordering key; empty: none
	NotAfter int64       // Unix milliseconds
	Size     int         // bytes of its letter
}

// An Origin numbers the mails in the spools of a node and decides what is sent next and which
// of them have ended.
type Origin struct {
	boot    uint64
	floor   uint64 // no counter of a forgotten box is above it
	bundles uint64 // number of the last bundle
	targets map[string]*target
	flights map[uint64]*flight
}

// A target is the spool of one box.
type target struct {
	box        string
	home       proto.PeerID // zero: not known
	generation uint64       // of home
	spools     [classes]spool
	lanes      map[string]*keyLane
}

// A keyLane is an ordering key with mail in the spool.
type keyLane struct {
	class proto.Class // all its mails are in this chain
	mails int
}

// A spool is the mails of one chain that have not ended.
type spool struct {
	counter uint64     // the last one given
	items   []item     // ascending by number
	next    int        // index of the first that is not in a bundle without an answer
	stopped proto.Code // why the home takes nothing now
	soonest int64      // no item expires before this
}

// An item is a mail in a spool.
type item struct {
	Mail
	n        proto.Seq
	stored   bool  // it may be sent
	maySent  bool  // a copy may be on its way, or at the home
	answered bool  // by the home; it ends when all before it are
	ending   bool  // its time is over; it is here until its end is on disk
	gone     bool  // End is removing it
	refusal  *Skip // with answered; nil: accepted
}

// NewOrigin returns an origin without mail. boot is the number of this start; it must be above
// those of all earlier starts, also after the disk was put back.
func NewOrigin(boot uint64) *Origin {
	return &Origin{boot: boot, targets: map[string]*target{}, flights: map[uint64]*flight{}}
}

// Load adds a mail that is on disk, in the order of the spool, before any [Origin.Add]. It may
// have been sent.
func (o *Origin) Load(box string, class proto.Class, n proto.Seq, m Mail) error {
	s := o.target(box).spool(class)
	switch {
	case n.Boot >= o.boot:
		return fmt.Errorf("%w: %s of %s", ErrBoot, n, box)
	case len(s.items) > 0 && s.items[len(s.items)-1].n.Compare(n) >= 0:
		return fmt.Errorf("%w: %s of %s", ErrOrder, n, box)
	}
	o.push(box, class, item{Mail: m, n: n, stored: true, maySent: true})
	return nil
}

// Add gives a mail its chain and its number, which have to be written with it. A keyed mail
// goes into the chain of the mails with that key which are still in the spool, whatever its
// class, so that it is taken after them. It is not sent before [Origin.Stored].
func (o *Origin) Add(box string, m Mail) (proto.Class, proto.Seq) {
	t := o.target(box)
	class := proto.Critical + proto.Class(m.Class.Index())
	if lane := t.lanes[m.Key]; lane != nil {
		class = lane.class
	}
	s := t.spool(class)
	s.counter = max(s.counter, o.floor) + 1
	n := proto.Seq{Boot: o.boot, Counter: s.counter}
	o.push(box, class, item{Mail: m, n: n})
	return class, n
}

// Stored notes that a mail is on disk: it may be sent. From now on its name is ref. It reports
// whether there is such a mail.
func (o *Origin) Stored(box string, class proto.Class, n proto.Seq, ref uint64) bool {
	s := o.spool(box, class)
	at, ok := s.find(n)
	if ok {
		s.items[at].Ref, s.items[at].stored = ref, true
	}
	return ok
}

// Hold keeps back a mail that is not wanted any more, and what follows in its chain, until
// [Origin.End]; it reports false if the mail may have been sent. Such a mail does not end
// like this: the home may have it.
func (o *Origin) Hold(box string, class proto.Class, n proto.Seq) bool {
	s := o.spool(box, class)
	at, ok := s.find(n)
	if !ok || s.items[at].maySent || s.items[at].ending {
		return false
	}
	s.items[at].stored = false
	return true
}

// HoldUnsent holds at most limit mails for a box that were never sent, the ones with the
// lowest refs, and returns them.
func (o *Origin) HoldUnsent(box string, limit int) []Expiry {
	var held []Expiry
	for i := range classes {
		class := proto.Critical + i
		for _, it := range o.spool(box, class).items {
			if it.stored && !it.maySent {
				held = append(held, Expiry{Box: box, Class: class, N: it.n, Ref: it.Ref})
			}
		}
	}
	sort.Slice(held, func(i, j int) bool { return held[i].Ref < held[j].Ref })
	held = held[:min(limit, len(held))]
	for _, h := range held {
		o.Hold(box, h.Class, h.N)
	}
	return held
}

// End removes mails of one chain that were not written, or that were held or have expired and
// have their ends on disk, and reports whether it removed them all. Were what follows sent as
// if a mail were not there before its end is on disk, the home would call the mail known when
// it comes back with a crash.
func (o *Origin) End(box string, class proto.Class, ns ...proto.Seq) bool {
	s, removed := o.spool(box, class), 0
	for _, n := range ns {
		at, ok := s.find(n)
		if !ok || s.items[at].gone || !s.items[at].ending && (s.items[at].maySent || s.items[at].stored) {
			continue
		}
		o.targets[box].ended(&s.items[at])
		s.items[at].gone = true
		removed++
	}
	if removed > 0 {
		for _, it := range s.items[:s.next] {
			if it.gone {
				s.next--
			}
		}
		s.items = slices.DeleteFunc(s.items, func(it item) bool { return it.gone })
	}
	return removed == len(ns)
}

// Front returns the first mail of a chain; false if there is none, or it ends.
func (o *Origin) Front(box string, class proto.Class) (n proto.Seq, ref uint64, ok bool) {
	s := o.spool(box, class)
	if len(s.items) == 0 || s.items[0].ending {
		return n, 0, false
	}
	return s.items[0].n, s.items[0].Ref, true
}

// Lose returns the first mail of a chain, which the home does not have, by its own word, and
// which can never be sent. What follows is held until [Origin.End].
func (o *Origin) Lose(box string, class proto.Class, n proto.Seq) (Expiry, bool) {
	front, ref, ok := o.Front(box, class)
	if !ok || front != n {
		return Expiry{}, false
	}
	s := o.spool(box, class)
	s.items[0].ending, s.items[0].stored = true, false
	return Expiry{Box: box, Class: class, N: n, Ref: ref}, true
}

// Break ends a mail of a chain whose record cannot be read, as if its time were over: see
// [Origin.Expire]. It reports false if there is no such mail, or if it ends.
func (o *Origin) Break(box string, class proto.Class, ref uint64) (Expiry, bool) {
	items := o.spool(box, class).items
	for i := range items {
		if it := &items[i]; it.Ref == ref && it.stored && !it.ending && it.refusal == nil {
			return it.over(box, class), true
		}
	}
	return Expiry{}, false
}

// An Expiry is a mail that ends because its time is over, that was held, or whose record cannot be read.
type Expiry struct {
	Box      string
	Class    proto.Class // of its chain
	N        proto.Seq
	Ref      uint64
	Unheard  bool // it may have been delivered: it may have been sent, and no answer came
	Accepted bool // the home has it; only the order of the answers kept it in the spool
}

// Expire returns, once, the mails whose time is over at now, in Unix milliseconds: at once if
// they were never sent, otherwise when no home takes them any more. Each stays in its chain,
// those that were never sent are held, until [Origin.End]. Mails that the home refused end
// with that refusal and are left to [Origin.Answer].
func (o *Origin) Expire(now int64) []Expiry {
	var over []Expiry
	for _, t := range o.sorted() {
		for i := range t.spools {
			over = t.expire(&t.spools[i], proto.Critical+proto.Class(i), now, over)
		}
	}
	return over
}

// Abandon returns, once, the mails for a box whose home will never answer, as if their time
// were over: see [Origin.Expire]. What is not stored yet is left to the next call.
func (o *Origin) Abandon(box string) (over []Expiry) {
	if t := o.targets[box]; t != nil {
		for i := range t.spools {
			over = t.expire(&t.spools[i], proto.Critical+proto.Class(i), maxTime, over)
		}
	}
	return over
}

func (t *target) expire(s *spool, class proto.Class, now int64, over []Expiry) []Expiry {
	if len(s.items) == 0 || now <= s.soonest {
		return over
	}
	s.soonest = maxTime
	for i := range s.items {
		it := &s.items[i]
		switch {
		case it.ending:
		case now <= it.end() || !it.stored || it.refusal != nil:
			s.soonest = min(s.soonest, it.end())
		default:
			over = append(over, it.over(t.box, class))
		}
	}
	return over
}

// over lets a mail of a chain end. One that was never sent is held.
func (it *item) over(box string, class proto.Class) Expiry {
	it.ending, it.stored = true, it.maySent
	return Expiry{Box: box, Class: class, N: it.n, Ref: it.Ref, Unheard: it.maySent && !it.answered, Accepted: it.answered}
}

// end returns the last millisecond in which the mail cannot expire.
func (it *item) end() int64 {
	if it.maySent {
		return it.NotAfter + proto.Skew.Milliseconds()
	}
	return it.NotAfter
}

// SetHome notes the home of a box, and reports whether that is news. What an earlier home has
// not answered is sent to the new one with the same numbers, and the earlier one is no longer
// listened to: a mail must not leave the spool by the word of a home that has lost the box.
// Which home is the right one is for the caller to know. Before a change of home, the caller waits until all
// that has ended is on disk: else a crash brings back what the new home never sees.
func (o *Origin) SetHome(box string, home proto.PeerID, generation uint64) bool {
	t := o.target(box)
	if generation == t.generation && home == t.home {
		return false
	}
	t.home, t.generation = home, generation
	o.rewind(t)
	for i := range t.spools {
		t.spools[i].stopped = none
	}
	return true
}

// Forget drops a box without mail. It reports false if there is some.
func (o *Origin) Forget(box string) bool {
	t := o.targets[box]
	if t == nil {
		return true
	}
	for i := range t.spools {
		if len(t.spools[i].items) > 0 {
			return false
		}
	}
	for i := range t.spools {
		o.floor = max(o.floor, t.spools[i].counter)
	}
	o.rewind(t)
	delete(o.targets, box)
	return true
}

// Len returns how many mails of a chain have not ended.
func (o *Origin) Len(box string, class proto.Class) int { return len(o.spool(box, class).items) }

// target returns the spool of a box, a new one if there is none.
func (o *Origin) target(box string) *target {
	t := o.targets[box]
	if t == nil {
		t = &target{box: box, lanes: map[string]*keyLane{}}
		o.targets[box] = t
	}
	return t
}

// spool returns the chain of a box, an empty one for a box that is not known.
func (o *Origin) spool(box string, class proto.Class) *spool {
	if t := o.targets[box]; t != nil {
		return t.spool(class)
	}
	return new(spool)
}

func (t *target) spool(class proto.Class) *spool { return &t.spools[class.Index()] }

// push adds a mail to its chain and its key to the lanes.
func (o *Origin) push(box string, class proto.Class, it item) {
	t := o.target(box)
	s := t.spool(class)
	if len(s.items) == 0 || it.end() < s.soonest {
		s.soonest = it.end()
	}
	s.items = append(s.items, it)
	if it.Key == "" {
		return
	}
	if t.lanes[it.Key] == nil {
		t.lanes[it.Key] = &keyLane{class: class}
	}
	t.lanes[it.Key].mails++
}

// ended takes the key of a mail that has ended out of the lanes.
func (t *target) ended(it *item) {
	lane := t.lanes[it.Key]
	if lane == nil {
		return
	}
	if lane.mails--; lane.mails == 0 {
		delete(t.lanes, it.Key)
	}
}

// find returns the index of the mail with this number.
func (s *spool) find(n proto.Seq) (int, bool) {
	return slices.BinarySearchFunc(s.items, n, func(it item, n proto.Seq) int { return it.n.Compare(n) })
}

// sorted returns the targets in the order of their boxes.
func (o *Origin) sorted() []*target {
	return slices.SortedFunc(maps.Values(o.targets), func(a, b *target) int { return strings.Compare(a.box, b.box) })
}
