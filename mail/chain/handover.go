package chain

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/balefire/balefire/proto"
)

// A box is handed over with the notes of the old home: [Home.Parts] of them come to the new one,
// where [Home.Merge] adds them under another name. It answers no bundle before all are there and
// [Home.Rename] has given them the name of the box. After a seizure it does: what the old home took
// is not known there. The origin sends the new home whatever the old one has not answered, and the
// old one, if it comes back, sends what it has as mail of its own.
//
// A home takes only bundles that name its own generation: then the origin knows of it, and no
// longer listens to an earlier home. A late one, sent to the node when it was the home before,
// would make it believe that it has what the origin still sends to another.

// Merge adds the notes of an earlier home about a box.
// Notes about other boxes are ignored. It returns Full, and has changed nothing, when a limit
// does not allow that, and Next otherwise.
func (h *Home) Merge(box string, earlier *Home) Verdict {
	for origin, boxes := range earlier.origins {
		if boxes[box] != nil && !h.mayMerge(origin, box, boxes[box]) {
			return Full
		}
	}
	for origin, boxes := range earlier.origins {
		if boxes[box] == nil {
			continue
		}
		theirs := boxes[box].clone()
		ours := h.box(origin, box)
		ours.floor = max(ours.floor, theirs.floor)
		for i, boots := range theirs.chains {
			for _, b := range boots {
				if at, ok := search(ours.chains[i], b.boot); ok {
					ours.chains[i][at].merge(b)
				} else {
					ours.chains[i] = slices.Insert(ours.chains[i], at, b)
				}
			}
			dropSkips(ours.chains[i])
		}
	}
	return Next
}

func (h *Home) mayMerge(origin proto.PeerID, box string, theirs *boxNotes) bool {
	ours := h.origins[origin][box]
	if ours == nil {
		return len(h.origins[origin]) < MaxBoxes
	}
	for i, boots := range theirs.chains {
		total := len(ours.chains[i])
		for _, b := range boots {
			if find(ours.chains[i], b.boot) == nil {
				total++
			}
		}
		if total > MaxBoots {
			return false
		}
	}
	return true
}

// merge adds the note of an earlier home. Its refusals do not count for what came here from
// the origin.
func (b *bootNote) merge(o bootNote) {
	skips := b.skips
	for _, s := range o.skips {
		if b.own < b.first {
			skips = append(skips, s)
			continue
		}
		skips = append(skips, skipRun{s.first, min(s.last, b.first-1), s.code}, skipRun{max(s.first, b.own+1), s.last, s.code})
	}
	slices.SortStableFunc(skips, func(x, y skipRun) int { return cmp.Compare(x.first, y.first) })
	b.skips = nil
	end := uint64(0)
	for _, s := range skips {
		if s.first <= s.last && end < s.last {
			s.first = max(s.first, end+1)
			b.skips, end = append(b.skips, s), s.last
		}
	}
	b.last, b.notAfter = max(b.last, o.last), max(b.notAfter, o.notAfter)
}

// dropSkips drops the oldest refusals that are too many.
func dropSkips(boots []bootNote) {
	over := countSkips(boots) - MaxSkips
	for i := range boots {
		n := min(max(over, 0), len(boots[i].skips))
		boots[i].skips, over = boots[i].skips[n:], over-n
	}
}

func (n *boxNotes) clone() boxNotes {
	c := *n
	for i, boots := range c.chains {
		c.chains[i] = slices.Clone(boots)
		for j := range c.chains[i] {
			c.chains[i][j].skips = slices.Clone(boots[j].skips)
		}
	}
	return c
}

// Boxes returns the names of the boxes of which h keeps notes, in order.
func (h *Home) Boxes() []string {
	all := map[string]bool{}
	for _, boxes := range h.origins {
		for box := range boxes {
			all[box] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// Parts returns what h keeps of one box in parts, each of one origin and class, so that none is
// large: [Home.Merge] of all of them is the whole.
func (h *Home) Parts(box string) iter.Seq[*Home] {
	return func(yield func(*Home) bool) {
		for _, origin := range slices.SortedFunc(maps.Keys(h.origins), proto.PeerID.Compare) {
			notes := h.origins[origin][box]
			if notes == nil || notes.isEmpty() && notes.floor == 0 {
				continue
			}
			all := notes.clone()
			for i, boots := range all.chains {
				if len(boots) == 0 && (i > 0 || !notes.isEmpty()) {
					continue
				}
				part := new(Home)
				one := part.box(origin, box)
				one.floor, one.chains[i] = all.floor, boots
				if !yield(part) {
					return
				}
			}
		}
	}
}

// Cut lowers the times that are later than a home can have noted: that of the latest mail that was
// forgotten, and that of the latest one that was not.
func (h *Home) Cut(floor, notAfter int64) {
	for _, boxes := range h.origins {
		for _, notes := range boxes {
			notes.floor = min(notes.floor, floor)
			for _, boots := range notes.chains {
				for i := range boots {
					boots[i].notAfter = min(boots[i].notAfter, notAfter)
				}
			}
		}
	}
}

// Retain drops the notes of the origins for which keep, given about how many bytes they take in their
// encoding, returns false.
func (h *Home) Retain(keep func(origin proto.PeerID, size int) bool) {
	maps.DeleteFunc(h.origins, func(origin proto.PeerID, boxes map[string]*boxNotes) bool {
		size := 0
		for box, notes := range boxes {
			size += notes.size(box)
		}
		return !keep(origin, size)
	})
}

// Sizes returns how many bytes the notes of each box take, about, in their encoding.
func (h *Home) Sizes() map[string]int64 {
	sizes := map[string]int64{}
	for _, boxes := range h.origins {
		for box, notes := range boxes {
			sizes[box] += int64(notes.size(box))
		}
	}
	return sizes
}

// size returns how many bytes the notes of an origin about a box take, about.
func (n *boxNotes) size(box string) int {
	return len(proto.PeerID{}) + len(box) + len(n.append(nil))
}

// Rename gives the notes of a box to another name, and adds them to those that this has.
func (h *Home) Rename(from, to string) {
	part := new(Home)
	for origin, boxes := range h.origins {
		if notes := boxes[from]; notes != nil {
			*part.box(origin, to) = notes.clone()
			if delete(boxes, from); len(boxes) == 0 {
				delete(h.origins, origin)
			}
		}
	}
	if h.Merge(to, part) == Full { // too many boots: those of this move are the newer ones
		h.Drop(to)
		h.Merge(to, part)
	}
}
