package box

import (
	"iter"
	"maps"
	"slices"

	"github.com/balefire/balefire/proto"
)

// An object is the body of a mail that is not in its letter. It is needed until the mail has
// ended, and is a dead letter nowhere.
type object struct {
	name   [32]byte // as in the letter
	origin uint32   // of the mail
}

// Objects returns the bodies outside of letters that this state needs, each with the node that
// its mail came from; zero is this one. A body comes once for each mail that has it.
func (s *State) Objects() iter.Seq2[[32]byte, proto.PeerID] {
	return func(yield func([32]byte, proto.PeerID) bool) {
		for _, b := range s.boxes {
			for _, o := range b.objects {
				origin, _ := s.Peer(o.origin)
				if !yield(o.name, origin) {
					return
				}
			}
		}
	}
}

// HasObject reports whether the body of a mail is not in its letter.
func (s *State) HasObject(id BoxID, seq uint64) bool {
	b := s.boxes[id]
	if b == nil {
		return false
	}
	_, ok := b.objects[seq]
	return ok
}

// refer notes the body of a mail that is not in its letter.
func (b *box) refer(seq uint64, l *proto.Letter, origin uint32) {
	if l.Object.IsZero() {
		return
	}
	if b.objects == nil {
		b.objects = map[uint64]object{}
	}
	b.objects[seq] = object{l.Object.Name, origin}
}

// release forgets the body of a mail that nobody can ask for any more.
func (b *box) release(seq uint64, out *Output) {
	o, ok := b.objects[seq]
	if !ok || b.keeps(seq, len(b.subs)) {
		return
	}
	delete(b.objects, seq)
	out.Objects = append(out.Objects, o.name)
}

func (c *saver) objects(b *box) {
	c.count(len(b.objects))
	for _, seq := range slices.Sorted(maps.Keys(b.objects)) {
		o := b.objects[seq]
		c.u64(seq)
		c.b = append(c.b, o.name[:]...)
		c.u32(o.origin)
		c.flush(1 << 16)
	}
}

func (d *decoder) objects(s *State, b *box) {
	last := uint64(0)
	for range d.count(44, MaxMails) {
		seq, o := d.u64(), object{d.array32(), d.u32()}
		d.check(seq > last && int64(o.origin) <= int64(len(s.peers)) && b.keeps(seq, len(b.subs)))
		if b.objects == nil {
			b.objects = map[uint64]object{}
		}
		b.objects[seq], last = o, seq
	}
}
