package chain

import "github.com/balefire/balefire/proto"

// MaxDropped is of how many boxes and origins dropped notes are remembered.
const MaxDropped = 1024

// dropped are the notes that were dropped last. They decide nothing: an origin that asks again
// about what its box took, because it lost the answer, is told. They are the home's own and on no
// disk. The zero value has none.
type dropped struct {
	notes map[originBox]*boxNotes
	order []originBox // the oldest first
}

// An originBox names the notes of one origin and box.
type originBox struct {
	origin proto.PeerID
	box    string
}

func (d *dropped) keep(x originBox, notes *boxNotes) {
	if d.notes == nil {
		d.notes = map[originBox]*boxNotes{}
	}
	if d.notes[x] == nil {
		d.order = append(d.order, x)
	}
	d.notes[x] = notes
	if len(d.order) > MaxDropped {
		delete(d.notes, d.order[0])
		d.order = d.order[1:]
	}
}

// Had reports whether a mail was taken, with none, or with the code with which it was refused for
// good; also of a box whose notes were dropped not long ago.
func (h *Home) Had(c Chain, n proto.Seq) (code proto.Code, had bool) {
	notes := h.origins[c.Origin][c.Box]
	if notes == nil {
		notes = h.dropped.notes[originBox{c.Origin, c.Box}]
	}
	if notes == nil || !c.valid() {
		return none, false
	}
	b := find(notes.chains[c.Class.Index()], n.Boot)
	if b == nil || n.Counter > b.last {
		return none, false
	}
	code, _ = b.refused(n.Counter)
	return code, true
}
