package box

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"slices"
)

// checkpointMagic begins a checkpoint; its last byte is the version.
const checkpointMagic = "BFBOXES\x08"

// Save writes what survives. The same state is always the same bytes, on each member of a
// group and after each replay.
func (s *State) Save(w io.Writer) error {
	c := saver{w: w, b: []byte(checkpointMagic)}
	c.u32(uint32(s.nextBox))
	c.b = s.limits.append(c.b)
	c.u64(s.boot)
	c.u64(uint64(s.ranPast))
	c.u64(uint64(s.ran))
	c.u64(uint64(s.at))
	c.boots(s.boots)
	c.count(len(s.peers))
	for _, p := range s.peers {
		c.b = append(c.b, p[:]...)
	}
	c.u32(s.self)
	chains := s.chains.Save()
	c.count(len(chains))
	c.b = append(c.b, chains...)
	c.dedupe(&s.dedupe)
	c.producers(&s.producers)
	c.taken(&s.taken)
	c.served(s.served)
	c.count(len(s.boxes))
	for _, id := range slices.Sorted(maps.Keys(s.boxes)) {
		c.box(s.boxes[id])
	}
	c.flush(0)
	return c.err
}

// A saver writes fields. It keeps the first error.
type saver struct {
	w   io.Writer
	b   []byte
	err error
}

// flush writes what is there if it is more than limit bytes.
func (c *saver) flush(limit int) {
	if len(c.b) > limit && c.err == nil {
		_, c.err = c.w.Write(c.b)
	}
	if len(c.b) > limit {
		c.b = c.b[:0]
	}
}

func (c *saver) u32(v uint32)     { c.b = appendU32(c.b, v) }
func (c *saver) u64(v uint64)     { c.b = appendU64(c.b, v) }
func (c *saver) uvarint(v uint64) { c.b = binary.AppendUvarint(c.b, v) }

// count writes how many elements follow.
func (c *saver) count(n int) {
	c.flush(1 << 16)
	c.uvarint(uint64(n))
}

func (c *saver) dedupe(d *dedupe) {
	c.u64(uint64(d.began))
	for _, g := range d.generations {
		c.count(len(g))
		for _, key := range sortedKeys(g) {
			f := g[key]
			c.b = append(append(c.b, key[:]...), f.id[:]...)
			c.u64(f.seq)
			c.u64(f.content)
			c.u32(f.share)
			c.flush(1 << 16)
		}
	}
}

// sortedKeys returns the keys of m in order.
func sortedKeys[V any](m map[[16]byte]V) [][16]byte {
	return slices.SortedFunc(maps.Keys(m), func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
}

// box writes a box. Numbers of keys and subjects are not a part of the state: mails refer
// to them by their places in order.
func (c *saver) box(b *box) {
	c.u32(uint32(b.id))
	c.b = b.settings.append(c.b)
	c.u64(b.next)
	c.u32(uint32(b.nextSub))
	c.starts(b.starts)
	c.u64(b.given)
	for state := Done; state < mailStates; state++ {
		c.u64(b.ended[state])
	}
	for _, n := range b.accepted {
		c.u64(n)
	}
	keys, subjects := make([]uint32, len(b.keys.list)+1), make([]uint32, len(b.subjects.list)+1)
	c.count(len(b.keys.ids))
	for i, k := range sortedKeys(b.keys.ids) {
		keys[b.keys.ids[k]] = uint32(i) + 1
		c.b = append(c.b, k[:]...)
	}
	c.count(len(b.subjects.ids))
	for i, v := range slices.Sorted(maps.Keys(b.subjects.ids)) {
		subjects[b.subjects.ids[v]] = uint32(i) + 1
		c.b = appendText(c.b, v)
	}
	c.mails(&b.mails, keys, subjects)
	c.mails(&b.kept.mails, keys, subjects)
	c.mails(&b.untold, keys, subjects)
	c.receipts(b)
	c.count(len(b.later))
	for _, seq := range slices.Sorted(maps.Keys(b.later)) {
		c.u64(seq)
		c.u64(uint64(b.later[seq]))
	}
	c.count(len(b.subs))
	for _, u := range b.subs {
		c.sub(u)
	}
	c.objects(b)
}

// mails writes a list of mails, whose keys and subjects are at these places in order.
func (c *saver) mails(l *mailList, keys, subjects []uint32) {
	c.count(l.count)
	last := uint64(0)
	for seq, m := l.next(0); m != nil; seq, m = l.next(seq + 1) {
		c.uvarint(seq - last)
		c.u64(uint64(m.place))
		for _, v := range []uint32{m.load, m.expiry, m.accepted, m.origin} {
			c.u32(v)
		}
		c.uvarint(uint64(keys[m.key]))
		c.uvarint(uint64(subjects[m.subject]))
		c.flush(1 << 16)
		last = seq
	}
}

func (c *saver) sub(u *sub) {
	c.u32(uint32(u.id))
	c.b = u.settings.append(c.b)
	c.u64(u.floor)
	c.spans(u.done)
	c.u64(u.known)
	c.spans(u.ended)
	c.count(len(u.retries))
	for _, seq := range slices.Sorted(maps.Keys(u.retries)) {
		c.retry(seq, u.retries[seq])
	}
	c.count(len(u.dead))
	for i := range u.dead {
		c.deadLetter(&u.dead[i])
	}
	c.count(len(u.blocked))
	for _, lane := range sortedKeys(u.blocked) {
		c.b = append(c.b, lane[:]...)
	}
}

func (c *saver) retry(seq uint64, r *retry) {
	c.u64(seq)
	c.b = append(c.b, r.attempts, r.abandons)
	c.u64(uint64(r.at))
	c.u64(uint64(r.due))
	c.tries(r.tries)
}

func (c *saver) spans(set seqSet) {
	c.count(len(set))
	for _, s := range set {
		c.u64(s.first)
		c.u64(s.end)
	}
}

func (c *saver) tries(tries []Try) {
	c.count(len(tries))
	for _, t := range tries {
		c.b = appendTime(append(c.b, byte(t.Cause)), t.At)
		c.b = appendText(appendText(c.b, t.Reader), t.Reason)
	}
}

func (c *saver) deadLetter(d *DeadLetter) {
	c.u64(d.Seq)
	c.u64(uint64(d.Place))
	c.u32(uint32(d.Length))
	c.u32(uint32(d.Size))
	c.b = append(c.b, byte(d.Class), byte(d.Cause), d.Attempts, d.Abandons)
	c.b = appendText(appendText(appendTime(c.b, d.At), d.Reader), d.Reason)
	c.b = appendFlag(appendFlag(c.b, d.Redriven), d.Redriven) // the first flag is reserved
	c.tries(d.Tries)
}
