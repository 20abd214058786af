package box

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// A modelKeyed is the dedupe key of a mail.
type modelKeyed struct {
	name string // origin/key
	at   int64  // when the mail came
	modelKey
}

// comes reports whether the key comes along to a home where it is now by the wall clock; 0: that is
// not known.
func (k modelKeyed) comes(now int64) bool {
	return now == 0 || now-k.at < (36*time.Hour).Milliseconds()
}

// moves reports whether a box neither takes nor gives mail, because it goes to another home, and
// stands whether nothing of it changes.
func (b *modelBox) moves() bool {
	return slices.Contains([]Stage{Closing, Still, Copying, Whole}, b.settings.Handover.Stage)
}
func (b *modelBox) stands() bool { return b.moves() && b.settings.Handover.Stage != Closing }

// took notes the letter of another node that wants a receipt.
func (m *model) took(rec *Mail, l *proto.Letter, r Result) {
	x := takenMail{rec.Origin, rec.Box, rec.Chain, rec.Number}
	if _, known := m.taken[x]; !known && r.Code == proto.CodeOK && rec.Chain != 0 && rec.Origin != 0 && l.Flags&proto.LetterReceipt != 0 {
		m.taken[x] = sha256.Sum256(rec.Letter)
	}
}

// applyNew applies a record that changes a box, or says what became of mails that are done.
func (m *model) applyNew(h head, d *decoder) {
	b := m.boxes[h.box]
	switch h.typ {
	case TypeBox:
		if d.u8() != boxSet {
			d.b = nil
			return
		}
		was := b.stands()
		if b.settings = d.boxSettings(); b.stands() && !was {
			for _, u := range b.subs {
				u.forgetLeases()
			}
		}
		b.trim()
	case TypeTold:
		for _, seq := range d.seqs(nil) {
			delete(b.untold, seq)
		}
	case TypeTaken:
		for _, r := range d.receipts() {
			if x := b.mails[r.Seq]; x != nil {
				m.end(b, r.Seq, Done)
				b.receipts[r.Seq] = string(r.Proof)
				m.keepMail(b, r.Seq, x)
			}
		}
	}
}

// tell takes some of the mails whose senders are to be told that they are done, and notes that: the
// record may be lost with a crash, and then they come again.
func (s *sim) tell() {
	limit := 1 + s.choose(5)
	if s.telling() {
		return
	}
	left, told := limit, map[BoxID][]uint64{}
	for _, k := range s.s.Untold(limit) {
		left--
		told[k.Box] = append(told[k.Box], k.Seq)
		if m, err := MailOf(s.log[k.Place-1]); err != nil || !asksToTell(m.Letter) || proto.LetterID(m.Letter) != s.m.boxes[k.Box].ids[k.Seq] {
			s.failf("at the place of %+v is %+v, %v", k, m, err)
		}
	}
	for id, b := range s.m.boxes {
		want := slices.Sorted(maps.Keys(b.untold))
		if len(told[id]) > len(want) || !slices.Equal(told[id], want[:len(told[id])]) || len(told[id]) < len(want) && left > 0 {
			s.failf("box %d: told %v, want %v", id, told[id], want)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(told)) {
		s.flight = append(s.flight, EncodeTold(id, told[id]))
	}
}

// telling reports whether a TOLD record was made and is not applied yet.
func (s *sim) telling() bool {
	return slices.ContainsFunc(s.flight, func(rec []byte) bool { t, _ := TypeOf(rec); return t == TypeTold })
}

// far does what becomes of the mail of a spool: its home has it, with or without a receipt, or it ends.
// The word of the home may come twice.
func (s *sim) far() {
	b := s.m.boxes[simSpool]
	if b.next == 1 {
		return
	}
	var seqs []uint64
	var list []Receipt
	for seq := uint64(1 + s.choose(int(b.next)-1)); seq < b.next && len(seqs) < 1+s.choose(4); seq++ {
		seqs, list = append(seqs, seq), append(list, Receipt{seq, fmt.Append(nil, "signed ", seq, " ", len(s.log))})
	}
	var rec []byte
	switch s.choose(6) {
	case 0:
		rec = EncodeSpoolDone(simSpool, seqs)
	case 1:
		rec = EncodeSpoolEnd(simSpool, SpoolEnd{State: []MailState{Dead, Expired, Cancelled}[s.choose(3)], Cause: CauseRefused, At: s.now.Wall, Reason: "no"}, seqs)
	case 2:
		list[0].Proof = nil // its home has the mail, and signed nothing
		fallthrough
	default:
		rec = EncodeTaken(simSpool, list)
	}
	if s.one(2) {
		s.flight = append(s.flight, rec)
		return
	}
	s.apply(rec)
}

// checkTaken asks whether the home knows the letter of a mail of a chain, or another one.
func (s *sim) checkTaken() {
	if len(s.mails) == 0 {
		return
	}
	m, err := ParseMail(s.mails[s.choose(len(s.mails))])
	if err != nil {
		s.failf("%v", err)
	}
	c, digest := Chain{proto.PeerID{byte(m.Origin)}, s.m.boxes[m.Box].settings.Name, m.Chain}, sha256.Sum256(m.Letter)
	known, ok := s.m.taken[takenMail{m.Origin, m.Box, m.Chain, m.Number}]
	if got, want := s.s.Took(c, m.Number, digest), ok && known == digest; got != want {
		s.failf("box %d took letter %s: %v, want %v (I22)", m.Box, m.Number, got, want)
	}
	if digest[0]++; s.s.Took(c, m.Number, digest) {
		s.failf("box %d took another letter with the number %s", m.Box, m.Number)
	}
}
