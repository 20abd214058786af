package box

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// moving is why a box takes no mail for now.
const moving = "the box is on its way to another home"

// applyMail takes a mail into its box, or refuses it. What is refused for now leaves no
// trace; what is refused for good leaves its number in its chain.
func (s *State) applyMail(p Place, rec []byte, out *Output) error {
	m, err := ParseMail(rec)
	if err != nil {
		return err
	}
	s.arrive(p, len(rec), &m, false, out)
	return nil
}

// arrive takes the mail of a record of some length at p, or refuses it, and adds the result. A
// mail that is passed on is none of the producer that its letter may name, and if it tells of an end, its
// key is not one of that share: it had one where it was.
func (s *State) arrive(p Place, length int, m *Mail, passed bool, out *Output) Result {
	l, problem := proto.ParseLetter(m.Letter)
	if passed {
		l.Produced, l.BounceOf = proto.Produced{}, proto.MailID{}
	}
	r := s.accept(p, length, m, &l, problem, out)
	r.Box = m.Box
	if r.ID.IsZero() {
		r.ID = l.ID
	}
	out.Results = append(out.Results, r)
	return r
}

func (s *State) accept(p Place, length int, m *Mail, l *proto.Letter, problem error, out *Output) Result {
	if problem == nil {
		if r, again := s.again(m, l); again {
			return r
		}
	}
	b := s.boxes[m.Box]
	switch {
	case b == nil:
		return refuse(proto.CodeNoHandler, "no such box")
	case !s.knows(m):
		return refuse(proto.CodeBusy, "unknown origin")
	case b.settings.Draining || b.settings.Closed:
		return refuse(proto.CodeDraining, "the box takes no new mail")
	case b.quiet():
		return refuse(proto.CodeBusy, moving)
	case m.spooled() != (b.settings.Kind == Spool):
		return Result{Code: proto.CodeBadForm, ForGood: true, Detail: "only a spool takes, and takes only, what this node has numbered"}
	}
	it := Numbered{m.Number, m.Prev, l.NotAfter}
	if problem != nil {
		it.NotAfter = m.At + proto.MaxTTL.Milliseconds()
	}
	chain, code := s.check(b, m.Origin, m.Chain, it)
	from := m.Origin
	if from != 0 && from == s.self { // its producer is known since it went into the spool
		m.Origin, l.Produced = 0, proto.Produced{}
	}
	var r Result
	switch code {
	case proto.CodeOK:
		r = s.admit(b, m, l, problem)
	case proto.CodeDuplicate:
		return Result{Duplicate: true}
	case proto.CodeExpired:
		r = Result{Code: code, ForGood: true, Detail: "so old that it may have been here before"}
	default:
		return refuse(code, "its number does not follow in its chain")
	}
	taken := r.Code == proto.CodeOK && !r.Duplicate
	if from != 0 && m.Chain != 0 && (r.Code == proto.CodeOK || r.ForGood) {
		s.chains.Note(chain, it, r.Code)
	}
	if r.Code == proto.CodeOK {
		s.noteTaken(m, from)
	}
	if taken {
		r.Seq = s.take(p, length, b, m, l, out)
	}
	return r
}

// knows reports whether the nodes that a mail names have an index.
func (s *State) knows(m *Mail) bool { return int64(max(m.Origin, m.Cause)) <= int64(len(s.peers)) }

// check asks the chains about a number. Mail of this node is always next.
func (s *State) check(b *box, origin uint32, class proto.Class, it Numbered) (Chain, proto.Code) {
	if class == 0 || origin == 0 {
		return Chain{}, proto.CodeOK
	}
	c := Chain{s.peers[origin-1], b.settings.Name, class}
	return c, s.chains.Check(c, it)
}

// admit decides whether a mail that is the next of its chain is taken.
func (s *State) admit(b *box, m *Mail, l *proto.Letter, problem error) Result {
	forGood := func(code proto.Code, detail string) Result {
		return Result{Code: code, ForGood: true, Detail: detail}
	}
	switch {
	case errors.Is(problem, proto.ErrNewLetter):
		return refuse(proto.CodeUnknownVersion, problem.Error())
	case problem != nil:
		return forGood(proto.CodeBadForm, problem.Error())
	case l.NotAfter <= m.At:
		return forGood(proto.CodeExpired, "past its not_after")
	case int64(len(m.Letter)) > b.maxBytes():
		return forGood(proto.CodeTooLarge, fmt.Sprintf("%d bytes, the box takes %d", len(m.Letter), b.maxBytes()))
	}
	if len(l.Dedupe) > 0 {
		key := dedupeKey(m.Box, m.Origin, l.Dedupe)
		first, known := s.dedupe.get(key)
		keys := int(or(s.limits.Keys, defaultKeys))
		switch {
		case known && first.content == contentHash(l):
			return Result{Duplicate: true, ID: first.id, Seq: first.seq}
		case known:
			return forGood(proto.CodeDenied, "the dedupe key was used for another mail")
		case s.dedupe.len() >= keys:
			return refuse(proto.CodeFull, "too many dedupe keys")
		case !s.dedupe.within(keyShare(m, l), keys):
			return refuse(proto.CodeFull, "its origin, or what tells of ends, has its share of the dedupe keys")
		}
	}
	return s.room(b, m)
}

// Room returns CodeOK, or the refusal for now with which Apply would answer a mail because its
// box takes none or has no space. It reads box, origin and size of m.
func (s *State) Room(m *Mail) Result {
	b := s.boxes[m.Box]
	switch {
	case b == nil:
		return refuse(proto.CodeNoHandler, "no such box")
	case b.settings.Draining || b.settings.Closed:
		return refuse(proto.CodeDraining, "the box takes no new mail")
	case b.quiet():
		return refuse(proto.CodeBusy, moving)
	}
	return s.room(b, m)
}

// room decides whether there is space for a mail.
func (s *State) room(b *box, m *Mail) Result {
	size, mails, bytes := int64(len(m.Letter)), b.maxMails(), b.maxBytes()
	held := b.held[m.Origin]
	switch {
	case s.bytes+size > int64(or(s.limits.Bytes, defaultNodeBytes)):
		return refuse(proto.CodeFull, "the node has too much mail")
	case b.keepsAll() && (b.mails.count >= mails || b.bytes+size > bytes):
		return refuse(proto.CodeFull, "the box is full")
	case m.Origin != 0 && b.keepsAll() && !(fair.Within(held.mails, b.mails.count, mails) && fair.Within(held.bytes, b.bytes, bytes)):
		return refuse(proto.CodeFull, "the origin has its share of the box")
	}
	return Result{}
}

// take gives a mail the next sequence of its box.
func (s *State) take(p Place, length int, b *box, m *Mail, l *proto.Letter, out *Output) uint64 {
	s.makeRoom(b, int64(len(m.Letter)), out)
	seq := b.next
	b.next++
	b.accepted[l.Class.Index()]++
	if len(l.Dedupe) > 0 {
		s.dedupe.put(dedupeKey(m.Box, m.Origin, l.Dedupe), firstMail{l.ID, seq, contentHash(l), keyShare(m, l)})
	}
	if m.Origin == 0 {
		s.produced(l)
	}
	s.put(b, seq, p, length, m, l)
	switch {
	case b.settings.Kind == Spool: // its home decides about the rest
	case l.Hops > MaxHops:
		s.kill(b, seq, ending{state: Dead, cause: CauseLoop, at: m.At, reason: fmt.Sprintf("caused by more than %d mails, one by one", MaxHops)}, out)
	case b.settings.JSON && l.Object.IsZero() && !json.Valid(l.Body):
		s.kill(b, seq, ending{state: Dead, cause: CauseNotJSON, at: m.At, reason: "the body is not JSON, and the box takes no other"}, out)
	case b.settings.Kind == Topic && b.settings.Interest && b.unread(seq) == 0:
		s.remove(b, seq, ending{state: Done}, out)
	default:
		b.wake(out)
	}
	return seq
}

// put adds a mail with a sequence to those that wait.
func (s *State) put(b *box, seq uint64, p Place, length int, m *Mail, l *proto.Letter) {
	x := mail{
		place: p, load: newLoad(l.Class.Index(), length, len(m.Letter)), expiry: seconds(l.NotAfter),
		accepted: uint32(min(m.At/1000, 1<<32-1)), origin: m.Origin,
	}
	spool := b.settings.Kind == Spool
	if !spool {
		s.expires = min(s.expires, int64(x.expiry)*1000)
	}
	if b.settings.Kind == Mailbox && asksToTell(m.Letter) {
		x.load |= tellsBit
	}
	if len(l.Key) > 0 && !spool {
		x.key = b.keys.use(b.laneHash(m.Origin, l.Key))
	}
	if b.settings.Kind == Topic && len(l.Subject) > 0 {
		x.subject = b.subjects.use(string(l.Subject))
	}
	if l.NotBefore > 0 && !spool {
		if b.later == nil {
			b.later = map[uint64]int64{}
		}
		b.later[seq] = l.NotBefore
	}
	if seq+1 == b.next {
		b.mails.push(seq, x)
	} else {
		b.mails.insert(seq, x)
	}
	b.refer(seq, l, m.Origin)
	s.charge(b, &x, 1)
}

// makeRoom drops the oldest mails of a topic until a new one has space.
func (s *State) makeRoom(b *box, size int64, out *Output) {
	for !b.keepsAll() && b.mails.count > 0 && (b.mails.count >= b.maxMails() || b.bytes+size > b.maxBytes()) {
		seq, _ := b.mails.next(0)
		s.remove(b, seq, ending{state: Dropped, cause: CauseFull}, out)
	}
}

// kill ends a mail that nobody may be given: a dead letter of each subscription.
func (s *State) kill(b *box, seq uint64, e ending, out *Output) {
	for _, u := range b.subs {
		if u.pending(seq) {
			s.bury(u, seq, &e)
		}
	}
	s.remove(b, seq, e, out)
}

// charge adds the mail to what the box and its origin have, or takes it away.
func (s *State) charge(b *box, m *mail, sign int64) {
	n := m.bytes() * sign
	b.bytes += n
	s.bytes += n
	if m.origin == 0 {
		return
	}
	h := b.held[m.origin]
	h.mails += int(sign)
	h.bytes += n
	if b.held == nil {
		b.held = map[uint32]share{}
	}
	if b.held[m.origin] = h; h.mails == 0 {
		delete(b.held, m.origin)
	}
}

// applySkip notes in its chain a mail that was refused for good.
func (s *State) applySkip(rec []byte, out *Output) error {
	k, err := ParseSkip(rec)
	if err != nil {
		return err
	}
	r, b := Result{Box: k.Box}, s.boxes[k.Box]
	switch {
	case b == nil || b.settings.Kind == Spool:
		r = refuse(proto.CodeNoHandler, "no such box")
	case int64(k.Origin) > int64(len(s.peers)):
		r = refuse(proto.CodeBusy, "unknown origin")
	case b.quiet():
		r = refuse(proto.CodeBusy, moving)
	default:
		it := Numbered{k.Number, k.Prev, k.NotAfter}
		switch c, code := s.check(b, k.Origin, k.Chain, it); code {
		case proto.CodeOK, proto.CodeExpired:
			s.chains.Note(c, it, k.Code)
		case proto.CodeDuplicate:
			r.Duplicate = true
		default:
			r = refuse(code, "its number does not follow in its chain")
		}
	}
	out.Results = append(out.Results, r)
	return nil
}

// laneHash names the lane of a key: SHA-256, half of it.
func (b *box) laneHash(origin uint32, key []byte) [16]byte {
	if !b.settings.PerPeer {
		origin = 0
	}
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+proto.MaxKey), origin), key...))
	return [16]byte(sum[:16])
}
