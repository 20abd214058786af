package box

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// A box moves to another home as a copy of its state, under another name:
//
//	old home            new home
//	Closing             -             readers may settle what they have, nothing else is done
//	Still               -             nothing of it changes any more
//	Still    ──parts──▶ Copying       in:NAME, which nobody is given
//	Still               Whole         all of it is there
//	                    Came          NAME, which is served, once the mesh knows that its home is here
//	removed                           when the old home has heard of that
//
// A part is a PART record, or the MOVE of a mail: one with a flag adds it to a copy. So each mail
// keeps its sequence, and all that names it: attempts, what subscriptions have read, and the numbers
// of chains. In this order: counts and subscriptions, mails, what is known about them. Leases are
// not a part: they end with Still, as by a restart, and nothing is spent.

// CopyPrefix begins the name of a box that comes from another home and is not served yet.
const CopyPrefix = "in:"

// A Stage is how far a box is on its way to another home.
type Stage uint8

// The stages.
const (
	Closing Stage = 1 + iota // at the old home: it takes and gives no mail, what is leased may be settled
	Still                    // there: nothing of it changes
	Copying                  // at the new home: a part of it is there
	Whole                    // there: all of it is
	Came                     // there: it is served
	stages
)

// A Handover is the move of a box to another home. The zero value is none.
type Handover struct {
	ID         [16]byte // of this move, drawn at random by the old home
	Peer       proto.PeerID
	Generation uint64 // of the old home
	Stage      Stage
}

// quiet reports whether the box neither takes nor gives mail.
func (b *box) quiet() bool {
	return b.settings.Handover.Stage > 0 && b.settings.Handover.Stage < Came
}

// still reports whether nothing of the box changes but by its move.
func (b *box) still() bool { return b.quiet() && b.settings.Handover.Stage != Closing }

func (h Handover) append(dst []byte) []byte {
	return append(appendU64(append(append(dst, h.ID[:]...), h.Peer[:]...), h.Generation), byte(h.Stage))
}

func (d *decoder) handover() Handover {
	h := Handover{d.array16(), proto.PeerID(d.array32()), d.u64(), Stage(d.u8())}
	d.check(h.Stage > 0)
	return h
}

func (h Handover) valid() bool {
	return h == Handover{} || h.ID != [16]byte{} && !h.Peer.IsZero() && h.Generation > 0 && h.Generation <= proto.MaxGeneration && h.Stage > 0 && h.Stage < stages
}

// A partOp says what a PART has.
type partOp uint8

const (
	partCounts  partOp = 1 + iota // sequences, numbers of subscriptions, how many mails came and have ended
	partSub                       // a subscription
	partRead                      // what it has read
	partEnded                     // what ended there without DONE
	partBlocked                   // its lanes that are blocked
	partRetry                     // what is known of a mail that was given back
	partDead                      // a dead letter
	partKept                      // mails that are kept, and when they were done
	partPast                      // mails that are dead letters only
	partChains                    // numbers of chains
	partServe                     // it has come: its settings from now on
	partLeave                     // it is gone from here, with all that it has
)

// Limits of a PART.
const (
	maxPartSpans = 2048
	maxPartLanes = 2048
)

// A part is a PART record.
type part struct {
	op       partOp
	next     uint64
	nextSub  SubID
	ended    [mailStates]uint64
	accepted [fair.Classes]uint64
	settings SubSettings
	floor    uint64
	known    uint64
	spans    seqSet
	lanes    [][16]byte
	seq      uint64
	retry    retry
	dead     DeadLetter // the new home knows the place of its record
	seqs     []uint64
	done     []uint32 // of partKept: Unix seconds; 0: not known
	notes    []byte
	given    uint64 // of partServe: deliveries of this start before it
	box      BoxSettings
}

// encodePart returns a PART record.
func encodePart(id BoxID, sub SubID, p *part) []byte {
	c := saver{b: append(appendHead(nil, head{typ: TypePart, sub: sub, box: id}), byte(p.op))}
	switch p.op {
	case partCounts:
		c.u64(p.next)
		c.u32(uint32(p.nextSub))
		for state := Done; state < mailStates; state++ {
			c.u64(p.ended[state])
		}
		for _, n := range p.accepted {
			c.u64(n)
		}
	case partSub:
		c.b = p.settings.append(c.b)
		c.u64(p.floor)
		c.u64(p.known)
	case partRead, partEnded:
		c.spans(p.spans)
	case partBlocked:
		c.count(len(p.lanes))
		for _, lane := range p.lanes {
			c.b = append(c.b, lane[:]...)
		}
	case partRetry:
		c.retry(p.seq, &p.retry)
	case partDead:
		c.deadLetter(&p.dead)
	case partKept, partPast:
		c.count(len(p.seqs))
		for i, seq := range p.seqs {
			c.u64(seq)
			if p.op == partKept {
				c.u32(p.done[i])
			}
		}
	case partChains:
		c.b = append(c.b, p.notes...)
	case partServe:
		c.u64(p.given)
		c.b = p.box.append(c.b)
	}
	return finish(c.b, 0)
}

// part reads what encodePart has written behind the head.
func (d *decoder) part() *part {
	p := &part{op: partOp(d.u8())}
	switch p.op {
	case partCounts:
		p.next, p.nextSub = d.u64(), SubID(d.u32n(1<<16-1))
		for state := Done; state < mailStates; state++ {
			p.ended[state] = d.u64()
		}
		sum := uint64(1)
		for class := range p.accepted {
			p.accepted[class] = d.u64()
			sum += p.accepted[class]
		}
		d.check(sum == p.next)
		d.check(p.next > 0 && p.next < 1<<62 && p.nextSub > 0)
	case partSub:
		p.settings, p.floor, p.known = d.subSettings(), d.u64(), d.u64()
	case partRead, partEnded:
		p.spans = d.spans(math.MaxUint64)
		d.check(len(p.spans) > 0 && len(p.spans) <= maxPartSpans)
	case partBlocked:
		for range d.count(16, maxPartLanes) {
			p.lanes = append(p.lanes, d.array16())
		}
	case partRetry:
		p.seq, p.retry = d.retry()
		d.check(p.retry.due >= p.retry.at && p.retry.due-p.retry.at <= MaxDelay.Milliseconds())
	case partDead:
		p.dead = d.deadLetter()
	case partKept, partPast:
		for range d.count(8, MaxSeqs) {
			p.seqs = append(p.seqs, d.u64())
			if p.op == partKept {
				p.done = append(p.done, d.u32())
			}
		}
	case partChains:
		p.notes, d.b = d.b, nil
	case partServe:
		p.given, p.box = d.u64(), d.boxSettings()
	default:
		d.check(p.op == partLeave)
	}
	return p
}

// applyPart takes a part of a copy, lets one be served, or removes what has gone.
func (s *State) applyPart(h head, d decoder, out *Output) error {
	p := d.part()
	if !d.done() || h.box == 0 {
		return bad(TypePart)
	}
	r, b := Result{}, s.boxes[h.box]
	switch {
	case b == nil:
		r = refuse(proto.CodeNoHandler, "no such box")
	case p.op == partLeave && b.still():
		s.forsake(b, out)
	case !b.settings.Handover.IsCopy():
		r = refuse(proto.CodeBusy, "the box does not come from another home")
	case p.op == partServe:
		r = s.serve(b, p, out)
	case p.op == partLeave || b.settings.Handover.Stage == Whole:
		r = refuse(proto.CodeBusy, "all of the box is there")
	default:
		if !s.takePart(b, h.sub, p) {
			r = Result{Code: proto.CodeBadForm, ForGood: true, Detail: "a part that does not fit the parts before it"}
		}
	}
	r.Box = h.box
	out.Results = append(out.Results, r)
	return nil
}

// takePart adds a part to a copy. It reports whether the part fits those before it.
func (s *State) takePart(b *box, id SubID, p *part) bool {
	u := b.sub(id)
	switch p.op {
	case partCounts:
		if p.next < b.next || p.nextSub < b.nextSub {
			return false
		}
		b.next, b.nextSub, b.ended, b.accepted = p.next, p.nextSub, p.ended, p.accepted
		return true
	case partSub:
		return b.takeSub(id, u, p)
	case partKept:
		return s.takeKept(b, p)
	case partPast:
		return s.takePast(b, p.seqs)
	case partChains:
		return s.chains.Merge(b.settings.Name, p.notes) == nil
	}
	if u == nil {
		return false
	}
	switch p.op {
	case partRead:
		if b.settings.Kind != Topic || len(u.retries) > 0 || p.spans[0].first < u.floor || p.spans[len(p.spans)-1].end > b.next {
			return false
		}
		if n := len(u.done); n > 0 && p.spans[0].first <= u.done[n-1].end {
			return false // in order: each takes the same time
		}
		for _, x := range p.spans {
			u.done.add(x.first, x.end)
		}
	case partEnded:
		if p.spans[len(p.spans)-1].end > b.next || len(u.ended)+len(p.spans) > maxEnded {
			return false
		}
		for _, x := range p.spans {
			u.ended.add(x.first, x.end)
		}
	case partBlocked:
		if len(u.blocked)+len(p.lanes) > MaxBlocked {
			return false
		}
		for _, lane := range p.lanes {
			u.blocked[lane] = true
		}
	case partRetry:
		if !u.pending(p.seq) {
			return false
		}
		u.retries[p.seq] = &p.retry
	case partDead:
		return s.takeDead(u, p.dead)
	}
	return true
}

// takeSub adds a subscription.
func (b *box) takeSub(id SubID, u *sub, p *part) bool {
	if p.floor > b.next || p.known > b.next || (b.settings.Kind == Topic) != (id > 0) || (id > 0) != (p.settings.Name != "") || id >= b.nextSub && id > 0 || id == 0 && p.floor > 0 {
		return false
	}
	if u == nil {
		if len(b.subs) >= MaxSubs || slices.ContainsFunc(b.subs, func(x *sub) bool { return x.settings.Name == p.settings.Name }) {
			return false
		}
		u = newSub(b, id, p.settings)
		at, _ := slices.BinarySearchFunc(b.subs, id, func(x *sub, id SubID) int { return cmp.Compare(x.id, id) })
		b.subs = slices.Insert(b.subs, at, u)
	}
	if u.settings.Name != p.settings.Name || len(u.retries) > 0 {
		return false
	}
	u.settings, u.floor, u.known, u.done = p.settings, p.floor, p.known, nil
	u.settings.Paused = u.settings.Paused || u.settings.To != "" // what is sent on is mail of this node: a person has to want that
	return true
}

// takeMail adds the mail of a MOVE.
func (s *State) takeMail(b *box, p Place, length int, seq uint64, m *Mail) Result {
	l, problem := proto.ParseLetter(m.Letter)
	limit := int64(or(s.limits.Bytes, defaultNodeBytes))
	switch size := int64(len(m.Letter)); {
	case problem != nil:
		return Result{Code: proto.CodeBadForm, ForGood: true, Detail: problem.Error()}
	case seq == 0 || seq >= b.next || m.spooled() || !s.knows(m):
		return Result{Code: proto.CodeBadForm, ForGood: true, Detail: "a mail that does not fit its box"}
	case s.bytes+size > limit:
		return refuse(proto.CodeFull, "the node has too much mail")
	case !fair.Within(b.bytes, s.bytes, limit):
		return refuse(proto.CodeFull, "the box has its share of the node's mail")
	case b.mails.count >= MaxMails:
		return refuse(proto.CodeFull, "the box is full")
	}
	s.put(b, seq, p, length, m, &l)
	s.takeKey(b, seq, m, &l)
	return Result{}
}

// takeKey remembers the dedupe key of a mail of a copy, if its old home may remember it, too, and
// has room in its share: what it says about the mail of others is its word.
func (s *State) takeKey(b *box, seq uint64, m *Mail, l *proto.Letter) {
	home, key := s.indexes[b.settings.Handover.Peer], dedupeKey(b.id, m.Origin, l.Dedupe)
	used, limit := s.dedupe.len(), int(or(s.limits.Keys, defaultKeys))
	first, _ := s.dedupe.get(key)
	old := s.at > 0 && s.at-m.At >= int64(len(s.dedupe.generations))*keyGeneration.Milliseconds()
	if len(l.Dedupe) > 0 && home != 0 && first.seq < seq && !old && used < limit && fair.Within(s.dedupe.held[home], used, limit) {
		s.dedupe.put(key, firstMail{l.ID, seq, contentHash(l), home})
	}
}

// takeDead adds a dead letter, whose mail is there.
func (s *State) takeDead(u *sub, d DeadLetter) bool {
	i, again := u.findDead(d.Seq)
	m := u.box.mails.get(d.Seq)
	if again || m == nil {
		return again
	}
	d.Place, d.Length, d.Size, d.Class = m.place, m.length(), m.bytes(), m.class()
	if s.details+d.detail() > maxDetails {
		d.Reason = d.Reason[:MaxReason]
	}
	s.undated = s.undated || d.At == 0
	s.details += d.detail()
	s.bytes += d.Size
	u.dead = slices.Insert(u.dead, i, d)
	return true
}

// takeKept lets mails be kept that are done.
func (s *State) takeKept(b *box, p *part) bool {
	for i, seq := range p.seqs {
		m := b.mails.get(seq)
		_, large := b.objects[seq]
		switch {
		case b.kept.mails.get(seq) != nil:
			continue
		case m == nil || large || b.settings.Kind != Mailbox || b.kept.mails.count >= b.maxKept():
			return false
		}
		x := *m
		s.drop(b, seq)
		x.key, x.subject, x.expiry = 0, 0, p.done[i]
		b.kept.mails.insert(seq, x)
		b.kept.bytes += x.bytes()
		s.kept += x.bytes()
	}
	s.trimAll()
	return true
}

// takePast lets mails be dead letters only.
func (s *State) takePast(b *box, seqs []uint64) bool {
	for _, seq := range seqs {
		if !slices.ContainsFunc(b.subs, func(u *sub) bool { return u.deadLetter(seq) != nil }) {
			return false
		}
		if b.mails.get(seq) != nil {
			s.drop(b, seq)
		}
	}
	return true
}

// drop takes a mail out of those that wait. Nothing is told of it.
func (s *State) drop(b *box, seq uint64) {
	m := *b.mails.get(seq)
	s.charge(b, &m, -1)
	b.mails.remove(seq)
	b.keys.drop(m.key)
	b.subjects.drop(m.subject)
	delete(b.later, seq)
	for _, u := range b.subs {
		delete(u.retries, seq)
	}
}

// serve lets a copy be the box that it is one of. A lease of another home is none here.
func (s *State) serve(b *box, p *part, out *Output) Result {
	was, settings := b.settings, p.box
	switch {
	case was.Handover.Stage != Whole:
		return refuse(proto.CodeBusy, "not all of the box is there")
	case settings.Handover.Stage != Came || CopyPrefix+settings.Name != was.Name || settings.Kind != was.Kind || settings.PerPeer != was.PerPeer:
		return Result{Code: proto.CodeBadForm, ForGood: true, Detail: "settings of another box"}
	case s.names[settings.Name] != 0:
		return refuse(proto.CodeDuplicate, "another box has the name")
	}
	delete(s.names, was.Name)
	s.names[settings.Name] = b.id
	s.chains.Rename(was.Name, settings.Name)
	b.settings, b.starts, b.given = settings, []started{{s.boot, 1}}, p.given
	s.served.note(settings.Handover.ID)
	s.trim(b)
	b.wake(out)
	return Result{}
}

// forsake removes a box that is at another home, or a copy. No mail ends.
func (s *State) forsake(b *box, out *Output) {
	s.tellLast(b, out)
	s.bytes -= b.bytes
	s.kept -= b.kept.bytes
	for _, o := range b.objects {
		out.Objects = append(out.Objects, o.name)
	}
	b.mails, b.objects = mailList{}, nil
	for _, u := range b.subs {
		s.removeSub(u, out)
	}
	delete(s.boxes, b.id)
	delete(s.names, b.settings.Name)
	s.dedupe.forget(b.id)
	s.chains.Drop(b.settings.Name)
}

// stand lets a box be still: who was given a mail has it no more, and nothing is spent.
func (b *box) stand() {
	for _, u := range b.subs {
		for _, d := range u.deliveries {
			d.release()
		}
		u.queue.reset()
		for _, r := range u.retries {
			r.scheduled = false
		}
	}
}

// A CopiedMail is a mail that a copy of a box needs.
type CopiedMail struct {
	Kept
	IsDone bool   // it is kept
	Done   uint32 // since then, Unix seconds; 0: not known
}

// CopyMails returns from a cursor on the next mails that a copy of a box needs, at most n or about
// size bytes of letters, at least one, and the cursor behind them. None: there are no more.
func (s *State) CopyMails(id BoxID, from Cursor, n int, size int64) (mails []CopiedMail, next Cursor) {
	b := s.boxes[id]
	if b == nil {
		return nil, from
	}
	if from.box != id {
		from = Cursor{box: id}
	}
	next = from
	b.places(from, func(at Cursor, k Kept) bool {
		if at.list == listUntold { // their senders are told here
			return true
		}
		if size -= k.Size; len(mails) > 0 && (len(mails) == n || size < 0) {
			return false
		}
		x := CopiedMail{Kept: k, IsDone: at.list == listKept}
		if x.IsDone {
			x.Done = b.kept.mails.get(k.Seq).expiry
		}
		mails, next = append(mails, x), Cursor{at.box, at.list, at.seq + 1}
		return true
	})
	return mails, next
}

// CopyHead returns the parts of a box that come before its mails, for box 0.
func (s *State) CopyHead(id BoxID) (parts [][]byte) {
	b := s.boxes[id]
	add := func(sub SubID, p *part) { parts = append(parts, encodePart(0, sub, p)) }
	add(0, &part{op: partCounts, next: b.next, nextSub: b.nextSub, ended: b.ended, accepted: b.accepted})
	for _, u := range b.subs {
		add(u.id, &part{op: partSub, settings: u.settings, floor: u.floor, known: u.known})
		for spans := range slices.Chunk(u.done, maxPartSpans) {
			add(u.id, &part{op: partRead, spans: spans})
		}
		for spans := range slices.Chunk(u.ended, maxPartSpans) {
			add(u.id, &part{op: partEnded, spans: spans})
		}
		for lanes := range slices.Chunk(sortedKeys(u.blocked), maxPartLanes) {
			add(u.id, &part{op: partBlocked, lanes: lanes})
		}
	}
	return parts
}

// CopyTail returns the parts of a box that come behind its mails, for box 0.
func (s *State) CopyTail(id BoxID) (parts [][]byte) {
	b := s.boxes[id]
	add := func(sub SubID, p *part) { parts = append(parts, encodePart(0, sub, p)) }
	var past []uint64
	for _, u := range b.subs {
		for _, seq := range slices.Sorted(maps.Keys(u.retries)) {
			add(u.id, &part{op: partRetry, seq: seq, retry: *u.retries[seq]})
		}
		for _, d := range u.dead {
			add(u.id, &part{op: partDead, dead: d})
			if b.mails.get(d.Seq) == nil {
				past = append(past, d.Seq)
			}
		}
	}
	slices.Sort(past)
	for seqs := range slices.Chunk(slices.Compact(past), MaxSeqs) {
		add(0, &part{op: partPast, seqs: seqs})
	}
	return parts
}

// EncodeKept returns a PART record for box 0: these mails of a copy are done and kept.
func EncodeKept(mails []CopiedMail) []byte {
	p := &part{op: partKept}
	for _, m := range mails {
		p.seqs, p.done = append(p.seqs, m.Seq), append(p.done, m.Done)
	}
	return encodePart(0, 0, p)
}

// EncodeChains returns a PART record for box 0: numbers of chains.
func EncodeChains(notes []byte) []byte {
	return encodePart(0, 0, &part{op: partChains, notes: notes})
}

// PartSize returns about how many bytes of memory what a PART record has takes; 0: it is another one.
func PartSize(rec []byte) int64 {
	switch h, d, err := parseHead(rec); {
	case err != nil || h.typ != TypePart:
		return 0
	case partOp(d.u8()) == partChains:
		return int64(len(rec)) * NotesMemory
	}
	return int64(len(rec))
}

// NotesMemory is about how many times the bytes of their encoding numbers of chains take in memory.
const NotesMemory = 8

// NotesOf returns the numbers of chains that a PART record has; false: it has none.
func NotesOf(rec []byte) (notes []byte, ok bool) {
	h, d, err := parseHead(rec)
	ok = err == nil && h.typ == TypePart && partOp(d.u8()) == partChains
	return d.b, ok
}

// EncodeServe returns a PART record: a copy that is whole is served, with settings.
func (s *State) EncodeServe(id BoxID, settings *BoxSettings) []byte {
	return encodePart(id, 0, &part{op: partServe, given: s.given, box: *settings})
}

// EncodeLeave returns a PART record: a box that is still, or a copy, is gone from here.
func EncodeLeave(id BoxID) []byte { return encodePart(id, 0, &part{op: partLeave}) }

// ForCopy returns a record that comes from the old home of a box as one for its copy. The error
// wraps [ErrBadRecord] if it cannot be a part of one. Origin returns the index here of one there, 0 for
// this node: its mail has no number here, which is known by the numbers of the chain.
func ForCopy(rec []byte, id BoxID, origin func(uint32) (uint32, error)) ([]byte, error) {
	h, d, err := parseHead(rec)
	switch {
	case err != nil:
		return nil, err
	case h.box != 0:
		return nil, bad(h.typ)
	case h.typ == TypePart:
		if p := d.part(); !d.done() || p.op >= partServe {
			return nil, bad(h.typ)
		}
		out := slices.Clone(rec)
		binary.BigEndian.PutUint32(out[8:], uint32(id))
		return out, nil
	}
	seq, raw, err := parseMove(rec)
	if err != nil {
		return nil, err
	}
	m, err := ParseMail(raw)
	if err != nil {
		return nil, err
	}
	if m.Origin, err = origin(m.Origin); err != nil {
		return nil, err
	}
	m.Letter = withoutReceipt(m.Letter) // who sent it, and when it came, is the word of the old home
	m.Cause = 0
	if m.Box = id; m.Origin == 0 {
		m.Chain, m.Number, m.Prev = 0, proto.Seq{}, proto.Seq{}
	}
	out, err := AppendMove(nil, seq, AppendMail(nil, &m))
	if err != nil {
		return nil, err
	}
	out[5] = flagAdds
	return out, nil
}

// ForTransit returns the record of a mail as one that [ForCopy] reads, and the mail. Origin returns
// the index there of one here.
func ForTransit(rec []byte, seq uint64, origin func(uint32) uint32) ([]byte, Mail, error) {
	m, err := MailOf(rec)
	if err != nil {
		return nil, m, err
	}
	m.Box, m.Cause, m.Origin = 0, 0, origin(m.Origin)
	out, err := AppendMove(nil, seq, AppendMail(nil, &m))
	return out, m, err
}

// Unmovable returns why a box cannot move to another home now; "": it can.
func (s *State) Unmovable(id BoxID) string {
	b := s.boxes[id]
	if b.settings.PerPeer && slices.ContainsFunc(b.subs, func(u *sub) bool { return len(u.blocked) > 0 }) {
		return "lanes of single nodes are blocked: unblock them first"
	}
	return ""
}

// Leases returns how many deliveries of a box are leased, or being settled.
func (s *State) Leases(id BoxID) (n int) {
	if b := s.boxes[id]; b != nil {
		for _, u := range b.subs {
			for _, d := range u.deliveries {
				if d.state != returned {
					n++
				}
			}
		}
	}
	return n
}

// IsCopy reports whether the box is a copy that is not served yet.
func (h Handover) IsCopy() bool { return h.Stage == Copying || h.Stage == Whole }

// IsUnserved reports whether the box takes and gives nothing here: it is on its way to or from here.
func (h Handover) IsUnserved() bool { return h.IsCopy() || h.IsLeaving() }

// IsLeaving reports whether the box is on its way from here.
func (h Handover) IsLeaving() bool { return h.Stage == Closing || h.Stage == Still }

// ParseSettings reads the settings in a BOX record for box 0.
func ParseSettings(rec []byte) (BoxSettings, error) {
	h, d, err := parseHead(rec)
	if err != nil {
		return BoxSettings{}, err
	}
	op := d.u8()
	s := d.boxSettings()
	if !d.done() || h != (head{typ: TypeBox}) || op != boxSet {
		return BoxSettings{}, bad(TypeBox)
	}
	return s, nil
}
