package box

import (
	"github.com/balefire/balefire/proto"
)

func (s *sim) send() {
	m := Mail{Box: s.boxes[s.choose(3)], At: s.now.Wall, Origin: uint32(s.choose(3))}
	if s.sole {
		m.Box, m.Origin = s.boxes[0], 1
	}
	if s.one(10) {
		m.Box, m.Origin, m.Chain = simSpool, 0, proto.Normal
		m.Number = proto.Seq{Boot: 1, Counter: uint64(s.ids) + 1}
	}
	if m.Origin > 0 && s.one(2) && s.numbered(&m) {
		return
	}
	s.ids++
	l := proto.Letter{
		Class: proto.Class(1 + s.choose(4)), ID: proto.MailID{0: 1, 12: byte(s.ids >> 24), 13: byte(s.ids >> 16), 14: byte(s.ids >> 8), 15: byte(s.ids)},
		Created: s.now.Wall - int64(s.choose(3))*1000, Body: make([]byte, s.choose(300)), Subject: []byte(simSubjects[s.choose(len(simSubjects))]),
	}
	l.NotAfter = l.Created + []int64{0, 8_000, 3600_000, 30 * 24 * 3600_000}[s.choose(4)]
	if s.choose(3) > 0 {
		l.Key = []byte{'a' + byte(s.choose(3))}
	}
	if s.one(4) {
		l.Dedupe = []byte{'a' + byte(s.choose(3))}
		l.Body = make([]byte, s.choose(2))
	}
	if s.ids%5 == 0 && len(l.Dedupe) == 0 {
		l.Body, l.Object = nil, proto.LetterObject{Name: [32]byte(append(l.ID[:], l.ID[:]...)), Size: 1 << 20}
	}
	if s.one(3) {
		l.Produced = s.number()
	}
	if s.one(8) && l.NotAfter > l.Created {
		l.NotBefore = l.Created + int64(s.choose(int(min(l.NotAfter-l.Created, 200_000))))
	}
	if s.one(30) {
		l.Hops = 16 + uint8(s.choose(2))
	}
	if s.one(2) {
		l.Flags = []proto.LetterFlags{proto.LetterTellEnd, proto.LetterReceipt, proto.LetterTellEnd | proto.LetterReceipt}[s.choose(3)]
	}
	letter, err := proto.AppendLetter(nil, &l)
	if err != nil {
		s.failf("letter: %v", err)
	}
	m.Letter = letter
	rec := AppendMail(nil, &m)
	if m.Chain != 0 && m.Origin != 0 {
		s.mails = append(s.mails, rec)
	}
	s.sendRecord(rec)
}

// numbered gives a mail a number in its chain. It reports true if an earlier mail was sent instead.
func (s *sim) numbered(m *Mail) (sent bool) {
	m.Chain = proto.Normal
	last := s.numbers[chainOf(m)]
	m.Number, m.Prev = proto.Seq{Boot: max(last.Boot, 1), Counter: last.Counter + 1}, last
	switch s.choose(6) {
	case 0: // one is missing
		m.Prev, m.Number = m.Number, proto.Seq{Boot: m.Number.Boot, Counter: m.Number.Counter + 1}
	case 1:
		if len(s.mails) > 0 {
			s.sendRecord(s.mails[s.choose(len(s.mails))]) // a copy of an old one
			return true
		}
	case 2: // the origin restarted
		m.Number = proto.Seq{Boot: m.Number.Boot + 1, Counter: 1}
	}
	return false
}

func (s *sim) sendRecord(rec []byte) {
	m, err := ParseMail(rec)
	if err != nil {
		s.failf("%v", err)
	}
	l, err := proto.ParseLetter(m.Letter)
	if err != nil {
		s.failf("%v", err)
	}
	s.log = append(s.log, rec)
	var out Output
	if err := s.s.Apply(Place(len(s.log)), rec, &out); err != nil {
		s.failf("mail: %v", err)
	}
	s.note(&out)
	got := out.Results[0]
	want := s.m.mail(&m, &l, got)
	s.did("send %d: class %d key %q seq %d code %v", m.Box, l.Class, l.Key, got.Seq, got.Code)
	if got.Code != want.Code || got.ForGood != want.ForGood || got.Duplicate != want.Duplicate || got.Seq != want.Seq || !want.ID.IsZero() && want.ID != got.ID {
		s.failf("sent %+v %+v: %+v, want %+v", m, l, got, want)
	}
	if m.Chain != 0 && (got.Code == proto.CodeOK && !got.Duplicate || got.ForGood) {
		s.numbers[chainOf(&m)] = m.Number
	}
}
