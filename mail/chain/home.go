package chain

import (
	"cmp"
	"maps"
	"slices"

	"github.com/balefire/balefire/proto"
)

// A Home decides which mails the boxes of a node take. It has to be changed with each record
// of the log that has a number, in their order, and by nothing else: then it is the same on
// each member of a group and after each replay. Its zero value is a home that knows nothing.
type Home struct {
	origins map[proto.PeerID]map[string]*boxNotes
	dropped dropped
}

// boxNotes is what a home keeps of one origin and box.
type boxNotes struct {
	floor  int64               // the latest not_after of what was forgotten: such a mail may have been here
	chains [classes][]bootNote // by class, ascending by boot
}

// A bootNote is what a home keeps of one boot of a chain.
type bootNote struct {
	boot     uint64
	first    uint64 // the first number that is known
	own      uint64 // the last one that came from the origin; below first: none
	last     uint64 // the last one that came from the origin or an earlier home
	notAfter int64  // the latest of its mails, Unix milliseconds
	skips    []skipRun
}

// A skipRun is a run of numbers that were refused for good for one reason. Numbers between
// them that never came are among them.
type skipRun struct {
	first, last uint64
	code        proto.Code
}

// Check returns what the rule makes of a mail, and changes nothing.
func (h *Home) Check(c Chain, it Item) Verdict {
	if !c.valid() || !it.Valid() {
		return Malformed
	}
	notes := h.origins[c.Origin][c.Box]
	switch {
	case it.N.Counter <= notes.last(c.Class, it.N.Boot):
		return Again
	case it.Prev != proto.Seq{} && it.Prev.Counter > notes.last(c.Class, it.Prev.Boot):
		return Busy
	case !h.fits(c, it.N.Boot):
		return Full
	case notes != nil && it.NotAfter <= notes.floor:
		return Expired
	}
	return Next
}

// Take notes that the box took a mail, if that is next. Its record in the log is the mail.
func (h *Home) Take(c Chain, it Item) Verdict {
	v := h.Check(c, it)
	if v == Next {
		h.note(c, it.N, it.NotAfter).own = it.N.Counter
	}
	return v
}

// Skip notes that a mail was refused for good, so that the chain goes on, if it is next or
// expired: then it returns Next. The code must be one that ends a mail: see
// [proto.Code.Ends]. The verdict is Busy when too many refusals would have to be kept that
// the origin has not heard of.
func (h *Home) Skip(c Chain, it Item, code proto.Code) Verdict {
	if _, ends := code.Ends(); !ends {
		return Malformed
	}
	v := h.Check(c, it)
	if v != Next && v != Expired {
		return v
	}
	b := h.boot(c, it.N.Boot)
	joins := b != nil && b.skippedLast(code)
	if !joins && !h.makeSpace(c, it) {
		return Busy
	}
	b = h.note(c, it.N, it.NotAfter)
	b.own = it.N.Counter
	if joins {
		b.skips[len(b.skips)-1].last = it.N.Counter
	} else {
		b.skips = append(b.skips, skipRun{it.N.Counter, it.N.Counter, code})
	}
	return Next
}

// Refused returns the code with which a mail was refused for good; false if it was not.
func (h *Home) Refused(c Chain, n proto.Seq) (proto.Code, bool) {
	if b := h.boot(c, n.Boot); b != nil {
		return b.refused(n.Counter)
	}
	return none, false
}

func (b *bootNote) refused(n uint64) (proto.Code, bool) {
	for _, s := range b.skips {
		if s.first <= n && n <= s.last {
			return s.code, true
		}
	}
	return none, false
}

// Forget drops the numbers of each boot of which every mail has expired. A mail that comes
// later and may be one of those is Expired. The caller must trust its clock: now is in Unix
// milliseconds. Of an origin with too many boxes, those without numbers are forgotten: they may
// be gone.
func (h *Home) Forget(now int64) {
	for origin, boxes := range h.origins {
		for _, notes := range boxes {
			for i, boots := range notes.chains {
				notes.chains[i] = slices.DeleteFunc(boots, func(b bootNote) bool {
					over := b.notAfter+proto.Skew.Milliseconds() < now
					if over {
						notes.floor = max(notes.floor, b.notAfter)
					}
					return over
				})
			}
		}
		if len(boxes) >= MaxBoxes {
			maps.DeleteFunc(boxes, func(_ string, notes *boxNotes) bool { return notes.isEmpty() })
		}
		if len(boxes) == 0 {
			delete(h.origins, origin)
		}
	}
}

// isEmpty reports whether no numbers are known.
func (n *boxNotes) isEmpty() bool {
	return !slices.ContainsFunc(n.chains[:], func(boots []bootNote) bool { return len(boots) > 0 })
}

// Drop removes all notes of a box: it was handed over, or is gone and its name never comes
// back.
func (h *Home) Drop(box string) {
	for origin, boxes := range h.origins {
		if notes := boxes[box]; notes != nil {
			h.dropped.keep(originBox{origin, box}, notes)
		}
		delete(boxes, box)
		if len(boxes) == 0 {
			delete(h.origins, origin)
		}
	}
}

// last returns the last number of a boot; 0 if there is none.
func (n *boxNotes) last(class proto.Class, boot uint64) uint64 {
	if n == nil {
		return 0
	}
	if b := find(n.chains[class.Index()], boot); b != nil {
		return b.last
	}
	return 0
}

// boot returns the note of a boot, nil if there is none.
func (h *Home) boot(c Chain, boot uint64) *bootNote {
	notes := h.origins[c.Origin][c.Box]
	if notes == nil || !c.valid() {
		return nil
	}
	return find(notes.chains[c.Class.Index()], boot)
}

func find(boots []bootNote, boot uint64) *bootNote {
	if at, ok := search(boots, boot); ok {
		return &boots[at]
	}
	return nil
}

func search(boots []bootNote, boot uint64) (int, bool) {
	return slices.BinarySearchFunc(boots, boot, func(b bootNote, boot uint64) int { return cmp.Compare(b.boot, boot) })
}

// fits reports whether there is, or may be, a note for a boot.
func (h *Home) fits(c Chain, boot uint64) bool {
	boxes := h.origins[c.Origin]
	notes := boxes[c.Box]
	if notes == nil {
		return len(boxes) < MaxBoxes
	}
	boots := notes.chains[c.Class.Index()]
	return len(boots) < MaxBoots || find(boots, boot) != nil
}

// note makes n the last number of its boot and returns the note of that.
func (h *Home) note(c Chain, n proto.Seq, notAfter int64) *bootNote {
	boots := &h.box(c.Origin, c.Box).chains[c.Class.Index()]
	at, ok := search(*boots, n.Boot)
	if !ok {
		*boots = slices.Insert(*boots, at, bootNote{boot: n.Boot, first: n.Counter})
	}
	b := &(*boots)[at]
	b.last = max(b.last, n.Counter)
	b.notAfter = max(b.notAfter, notAfter)
	return b
}

// box returns the notes of a box, new ones if there are none.
func (h *Home) box(origin proto.PeerID, box string) *boxNotes {
	if h.origins == nil {
		h.origins = map[proto.PeerID]map[string]*boxNotes{}
	}
	boxes := h.origins[origin]
	if boxes == nil {
		boxes = map[string]*boxNotes{}
		h.origins[origin] = boxes
	}
	if boxes[box] == nil {
		boxes[box] = new(boxNotes)
	}
	return boxes[box]
}

// skippedLast reports whether the last mail was refused with this code.
func (b *bootNote) skippedLast(code proto.Code) bool {
	if len(b.skips) == 0 {
		return false
	}
	s := b.skips[len(b.skips)-1]
	return s.last == b.last && s.code == code
}

// makeSpace reports whether the refusal of it, the next mail of its chain, can be kept as one
// more run. If need be, it forgets those that the origin has heard of: it no longer has the mails
// between the one before it and this one.
func (h *Home) makeSpace(c Chain, it Item) bool {
	notes := h.origins[c.Origin][c.Box]
	if notes == nil {
		return true
	}
	boots := notes.chains[c.Class.Index()]
	if countSkips(boots) < MaxSkips {
		return true
	}
	for i := range boots {
		b := &boots[i]
		if b.boot > it.N.Boot {
			break
		}
		b.skips = slices.DeleteFunc(b.skips, func(s skipRun) bool {
			return proto.Seq{Boot: b.boot, Counter: s.first}.Compare(it.Prev) > 0
		})
	}
	return countSkips(boots) < MaxSkips
}

func countSkips(boots []bootNote) (n int) {
	for i := range boots {
		n += len(boots[i].skips)
	}
	return n
}
