package box

import (
	"cmp"
	"slices"
)

// Limits of what is known of earlier starts.
const (
	maxBoots  = 1024 // starts of the home
	maxStarts = 64   // starts in which one box took mail that still waits
)

// A started is a start of the home, and the first mail that a box took in it. The first one of a
// box is that in which it was made, or came here.
type started struct {
	boot, first uint64
}

// begin notes that the home has started.
func (s *State) begin(boot uint64) {
	s.boot = boot
	if s.boots = append(s.boots, boot); len(s.boots) > maxBoots {
		s.boots = slices.Delete(s.boots, 0, 1)
	}
	for _, b := range s.boxes {
		b.begin(boot)
	}
}

// begin notes that what the box takes from now on is mail of a new start. Starts of which no mail
// waits are forgotten. If there are too many, the oldest mails count as those of a later start: who
// has one since before that cannot settle it any more, and it comes again.
func (b *box) begin(boot uint64) {
	keep := b.starts[:1]
	for i, x := range b.starts[1:] {
		end := b.next
		if i+2 < len(b.starts) {
			end = b.starts[i+2].first
		}
		if seq, m := b.mails.next(x.first); m != nil && seq < end {
			keep = append(keep, x)
		}
	}
	if len(keep) == maxStarts {
		keep[2].first = keep[1].first
		keep = slices.Delete(keep, 1, 2)
	}
	b.starts = append(keep, started{boot, b.next})
}

// newest is the newest start of the home, as far as the box is concerned.
func (b *box) newest() started { return b.starts[len(b.starts)-1] }

// mayHaveGiven reports whether an earlier start of this home may have made a delivery of a box. It may
// be of another home, of a box that was removed and whose name this one has, or of a mail that
// was lost when the disk was put back.
func (s *State) mayHaveGiven(b *box, h Handle) bool {
	_, known := slices.BinarySearch(s.boots, h.Boot)
	return known && h.Boot >= b.takenIn(h.Seq) && (h.Boot > b.starts[0].boot || h.N > b.given)
}

// takenIn returns the start in which a mail was taken, or came here with its box; of one of an earlier
// start that waits no more, that in which its box did.
func (b *box) takenIn(seq uint64) uint64 {
	if x := b.newest(); seq >= x.first {
		return x.boot
	}
	if b.mails.get(seq) == nil {
		return b.starts[0].boot
	}
	i, _ := slices.BinarySearchFunc(b.starts, seq+1, func(x started, seq uint64) int { return cmp.Compare(x.first, seq) })
	return b.starts[i-1].boot
}

func (c *saver) starts(list []started) {
	c.count(len(list))
	for _, x := range list {
		c.u64(x.boot)
		c.u64(x.first)
	}
}

// starts reads the starts of a box, whose next mail is next.
func (d *decoder) starts(s *State, next uint64) (list []started) {
	last := started{}
	for n := range d.count(16, maxStarts) {
		x := started{d.u64(), d.u64()}
		d.check(n == 0 && x.first == 1 || n > 0 && x.boot > last.boot && x.first >= last.first)
		list, last = append(list, x), x
	}
	d.check(len(list) > 0 && last.boot == s.boot && last.first <= next)
	return list
}

func (c *saver) boots(list []uint64) {
	c.count(len(list))
	for _, boot := range list {
		c.u64(boot)
	}
}

// boots reads the starts of a home.
func (d *decoder) boots() (list []uint64) {
	last := uint64(0)
	for range d.count(8, maxBoots) {
		boot := d.u64()
		d.check(boot > last)
		list, last = append(list, boot), boot
	}
	return list
}
