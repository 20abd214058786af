package box

import "slices"

// MaxServed is how many handovers to this node are remembered, the newest.
const MaxServed = 4096

// served are the ids of the handovers whose boxes this node has served, the oldest first. An old
// home that died before it heard of that asks when it is back: the box may have gone on since, or
// have been removed.
type served [][16]byte

// note adds a handover.
func (v *served) note(id [16]byte) {
	if *v = append(*v, id); len(*v) > MaxServed {
		*v = slices.Delete(*v, 0, len(*v)-MaxServed)
	}
}

// Served reports whether this node has served the box of a handover, as far as it remembers.
func (s *State) Served(id [16]byte) bool { return slices.Contains(s.served, id) }

func (c *saver) served(v served) {
	c.count(len(v))
	for _, id := range v {
		c.b = append(c.b, id[:]...)
	}
}

func (d *decoder) served() (v served) {
	for range d.count(16, MaxServed) {
		v = append(v, d.array16())
	}
	return v
}
