package box

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/balefire/balefire/proto"
)

// taken are the digests of the letters that a home took from other nodes and whose senders want a
// receipt: what is answered again may be of another letter with the same number. When there are
// too many, those of the origin that has the most are forgotten, the oldest first.
type taken struct {
	digests map[takenMail][32]byte
	order   map[uint32][]takenMail // by origin, the oldest first
}

// A takenMail names a mail of another node by its chain and number.
type takenMail struct {
	origin uint32
	box    BoxID
	class  proto.Class
	number proto.Seq
}

// note remembers a mail.
func (t *taken) note(x takenMail, digest [32]byte) {
	if _, known := t.digests[x]; known {
		return
	}
	if t.digests == nil {
		t.digests, t.order = map[takenMail][32]byte{}, map[uint32][]takenMail{}
	}
	if len(t.digests) >= maxTaken {
		most := t.most()
		delete(t.digests, t.order[most][0])
		if t.order[most] = t.order[most][1:]; len(t.order[most]) == 0 {
			delete(t.order, most)
		}
	}
	t.digests[x] = digest
	t.order[x.origin] = append(t.order[x.origin], x)
}

// most returns the origin that has the most.
func (t *taken) most() uint32 {
	return slices.MaxFunc(slices.Sorted(maps.Keys(t.order)), func(a, b uint32) int { return cmp.Compare(len(t.order[a]), len(t.order[b])) })
}

// Took reports whether a letter is the one with this number that the box took, and whose sender
// wants a receipt.
func (s *State) Took(c Chain, n proto.Seq, digest [32]byte) bool {
	d, known := s.taken.digests[takenMail{s.indexes[c.Origin], s.names[c.Box], c.Class, n}]
	return known && d == digest
}

// noteTaken remembers a letter that was taken from a node, if its sender wants a receipt.
func (s *State) noteTaken(m *Mail, from uint32) {
	if m.Chain != 0 && from != 0 && WantsReceipt(m.Letter) {
		s.taken.note(takenMail{from, m.Box, m.Chain, m.Number}, sha256.Sum256(m.Letter))
	}
}

// WantsReceipt reports whether the sender of a letter, which was parsed, wants a receipt.
func WantsReceipt(letter []byte) bool {
	return proto.LetterFlags(binary.BigEndian.Uint16(letter[2:]))&proto.LetterReceipt != 0
}

// withoutReceipt returns a copy of a letter, which may be none, whose sender wants no receipt.
func withoutReceipt(letter []byte) []byte {
	out := slices.Clone(letter)
	if len(out) >= 4 {
		binary.BigEndian.PutUint16(out[2:], binary.BigEndian.Uint16(out[2:])&^uint16(proto.LetterReceipt))
	}
	return out
}

// A Receipt is what a home has signed about a mail of a spool. Its bytes are the caller's; empty:
// the home has the mail, and did not sign that.
type Receipt struct {
	Seq   uint64
	Proof []byte // at most MaxProof bytes
}

// EncodeTaken returns a TAKEN record: the home of a spool's box has these mails, ascending
// and at most MaxReceipts, whose senders wanted receipts.
func EncodeTaken(spool BoxID, list []Receipt) []byte {
	last := uint64(0)
	rec := appendHead(nil, head{typ: TypeTaken, box: spool})
	for _, r := range list {
		rec = appendText(binary.AppendUvarint(rec, r.Seq-last), r.Proof)
		last = r.Seq
	}
	return finish(rec, 0)
}

// receipts reads those of a TAKEN record.
func (d *decoder) receipts() (list []Receipt) {
	last := uint64(0)
	for len(d.b) > 0 {
		n := d.uvarint(1 << 62)
		r := Receipt{last + n, d.text(MaxProof)}
		d.check(n > 0 && len(list) < MaxReceipts)
		list, last = append(list, r), r.Seq
	}
	d.check(len(list) > 0)
	return list
}

// applyTaken ends mails of a spool as an ACK does, and keeps them with their receipts.
func (s *State) applyTaken(h head, list []Receipt, out *Output) {
	b := s.boxes[h.box]
	if b == nil || b.settings.Kind != Spool {
		return
	}
	for _, r := range list {
		x := b.mails.get(r.Seq)
		if x == nil {
			continue
		}
		m := *x
		s.remove(b, r.Seq, ending{state: Done}, out)
		if b.receipts == nil {
			b.receipts = map[uint64][]byte{}
		}
		b.receipts[r.Seq] = slices.Clone(r.Proof)
		s.receipts++
		s.keepMail(b, r.Seq, m)
	}
	for s.receipts > maxReceipts {
		s.forgetOldest(s.hasMostReceipts())
	}
}

// hasMostReceipts returns the box with the most; of several the first.
func (s *State) hasMostReceipts() (most *box) {
	for _, b := range s.boxes {
		if most == nil || len(b.receipts) > len(most.receipts) || len(b.receipts) == len(most.receipts) && b.id < most.id {
			most = b
		}
	}
	return most
}

// Receipt returns what the home of a spool's box has signed about a mail that it has; false if
// the spool does not keep the mail.
func (s *State) Receipt(id BoxID, seq uint64) (proof []byte, ok bool) {
	if b := s.boxes[id]; b != nil {
		proof, ok = b.receipts[seq]
	}
	return proof, ok
}

// Receipts returns how many mails of a spool are kept with their receipts.
func (s *State) Receipts(id BoxID) int {
	if b := s.boxes[id]; b != nil {
		return len(b.receipts)
	}
	return 0
}

func (c *saver) receipts(b *box) {
	c.count(len(b.receipts))
	for _, seq := range slices.Sorted(maps.Keys(b.receipts)) {
		c.u64(seq)
		c.b = appendText(c.b, b.receipts[seq])
		c.flush(1 << 16)
	}
}

// readReceipts reads those of a spool, one for each mail that it keeps.
func (d *decoder) readReceipts(s *State, b *box) {
	last := uint64(0)
	for range d.count(9, maxReceipts) {
		seq, proof := d.u64(), d.text(MaxProof)
		d.check(seq > last && b.kept.mails.get(seq) != nil)
		if b.receipts == nil {
			b.receipts = map[uint64][]byte{}
		}
		b.receipts[seq], last = slices.Clone(proof), seq
	}
	s.receipts += len(b.receipts)
	d.check(s.receipts <= maxReceipts && (b.settings.Kind != Spool || len(b.receipts) == b.kept.mails.count) && (b.settings.Kind == Spool || len(b.receipts) == 0))
}

func (c *saver) taken(t *taken) {
	c.count(len(t.order))
	for _, origin := range slices.Sorted(maps.Keys(t.order)) {
		c.u32(origin)
		c.count(len(t.order[origin]))
		for _, x := range t.order[origin] {
			digest := t.digests[x]
			c.u32(uint32(x.box))
			c.b = append(appendSeq(append(c.b, byte(x.class)), x.number), digest[:]...)
			c.flush(1 << 16)
		}
	}
}

func (d *decoder) taken(s *State) {
	last := uint32(0)
	for n := range d.count(5, MaxOrigins) {
		origin := d.u32()
		d.check(origin > 0 && int64(origin) <= int64(len(s.peers)) && (n == 0 || origin > last))
		last = origin
		list := d.count(53, maxTaken-len(s.taken.digests))
		d.check(list > 0)
		for range list {
			x := takenMail{origin, BoxID(d.u32()), proto.Class(d.u8()), d.number()}
			digest := d.array32()
			_, twice := s.taken.digests[x]
			d.check(!twice && x.class >= proto.Critical && x.class <= proto.Low && validNumber(x.number))
			s.taken.note(x, digest)
		}
	}
}
