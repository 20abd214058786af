package chain

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/balefire/balefire/proto"
)

// The simulator has one origin, two nodes that can be the home of a box, their disks, and a
// network that loses, repeats and reorders, over days. A run is a function of its seed.

const simBox = "agent:desk"

var simOrigin = proto.PeerID{1}

func simPeer(i int) proto.PeerID { return proto.PeerID{2, byte(i)} }

// simFaults are the faults that a run may have besides those of the network and crashes.
type simFaults struct {
	originPutBack, homePutBack, moves bool
}

// faultsOf lets one run in eight have each combination.
func faultsOf(seed uint64) simFaults {
	return simFaults{originPutBack: seed&1 > 0, homePutBack: seed&2 > 0, moves: seed&4 > 0}
}

type sim struct {
	rng    *rand.Rand
	now    int64 // Unix milliseconds, on every clock
	may    simFaults
	origin simSpool
	homes  [2]*simHome
	home   int    // the node that the newest deed names
	gen    uint64 // of that deed
	seized bool   // the other node does not know of it yet
	link   int    // answers of an earlier connection are lost
	net    []simBundle
	sent   []simBundle // the last ones, of which a copy may come much later
	back   []simAnswer
	mails  []*simMail
	counts map[string]int
	failed string

	originRolled, homeRolled bool
}

// A simMail is the truth about one mail.
type simMail struct {
	id       int
	key      string
	class    proto.Class
	notAfter int64
	denied   bool   // homes refuse it for good
	stored   bool   // its sender was told so
	ended    string // at the origin: accepted, refused, expired, unheard, cancelled
	code     proto.Code
	undone   bool // it had ended at the origin before an old disk came back
	gone     bool // with a disk
	late     bool // it ended when the homes had forgotten it
	sentOn   bool // by a home before a seizure, which took it
}

func (m *simMail) mail() Mail {
	return Mail{Ref: uint64(m.id), Class: m.class, Key: m.key, NotAfter: m.notAfter, Size: 20 << 10}
}

type simBundle struct {
	link int
	b    Bundle
}

type simAnswer struct {
	link int
	from proto.PeerID
	a    Answer
}

// A simSpool is the origin with its disk.
type simSpool struct {
	*Origin
	boot   uint64
	disk   []simRecord
	queue  []simWrite // not synced
	copies [][]simRecord
}

// A simRecord is a mail in the spool on disk, with its number.
type simRecord struct {
	id    int
	class proto.Class
	n     proto.Seq
}

// A simWrite adds a record, or removes that of a mail.
type simWrite struct {
	simRecord
	remove bool
	held   string // with remove: how it ended, which counts when it is on disk
}

// simulate runs one seed.
func simulate(seed uint64, steps int) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 7)), now: 1 << 40, may: faultsOf(seed), gen: 1, counts: map[string]int{}}
	s.origin.boot = 1
	s.origin.Origin = NewOrigin(1)
	s.origin.SetHome(simBox, simPeer(0), 1)
	for i := range s.homes {
		s.homes[i] = newSimHome(s, i)
	}
	s.homes[0].acting, s.homes[0].gen = true, 1
	for range steps {
		if s.failed != "" {
			return s
		}
		s.step()
	}
	s.drain()
	s.check()
	return s
}

func (s *sim) fail(format string, args ...any) {
	if s.failed == "" {
		s.failed = fmt.Sprintf(format, args...)
	}
}

// one reports true once in n times.
func (s *sim) one(n int) bool { return s.rng.IntN(n) == 0 }

func (s *sim) class() proto.Class { return proto.Critical + proto.Class(s.rng.IntN(4)) }

func (s *sim) step() {
	s.now += s.rng.Int64N(2000)
	if s.may == (simFaults{moves: true}) && s.one(12) {
		s.fault()
		return
	}
	switch k := s.rng.IntN(100); {
	case k < 18:
		s.create()
	case k < 26:
		s.syncOrigin()
	case k < 44:
		s.send(s.class())
	case k < 60:
		s.deliver()
	case k < 68:
		s.homes[s.rng.IntN(2)].sync()
	case k < 82:
		s.hear()
	case k < 86:
		s.origin.Resume(simBox, s.class())
	case k < 88:
		s.reconnect()
	case k < 90:
		s.expire()
	case k < 92:
		s.cancel()
	case k < 94:
		s.learn()
	default:
		s.fault()
	}
}

// fault does one of the rarer things.
func (s *sim) fault() {
	h := s.homes[s.rng.IntN(2)]
	switch s.rng.IntN(11) {
	case 0:
		s.startOrigin()
	case 1:
		h.start()
	case 2:
		if s.one(4) {
			s.now += 10 * proto.Skew.Milliseconds()
		}
		h.Forget(s.now)
		h.checkpoint()
	case 3:
		s.origin.copies = append(s.origin.copies, slices.Clone(s.origin.disk))
	case 4:
		if s.may.originPutBack && !s.seized && len(s.origin.copies) > 0 && s.one(2) {
			s.putBackOrigin(s.origin.copies[s.rng.IntN(len(s.origin.copies))])
		}
	case 5:
		h.copies = append(h.copies, h.simDisk.clone())
	case 6:
		if s.may.homePutBack && len(h.copies) > 0 && s.one(3) {
			h.putBack(s.rng.IntN(len(h.copies)))
		}
	case 7:
		if s.may.moves {
			s.handoff()
		}
	case 8:
		if s.may.moves {
			s.seize()
		}
	default:
		s.comeBack()
	}
}

func (s *sim) create() {
	m := &simMail{id: len(s.mails), class: s.class(), notAfter: s.now + 60_000 + s.rng.Int64N(3_600_000)}
	if m.denied = s.one(11); s.may == (simFaults{moves: true}) {
		m.denied = s.one(3)
	}
	if s.one(2) {
		m.key = []string{"a", "b", "c"}[s.rng.IntN(3)]
	}
	s.mails = append(s.mails, m)
	class, n := s.origin.Add(simBox, m.mail())
	if class != m.class {
		s.counts["in the chain of its key"]++
	}
	if s.one(20) { // the disk is full
		if !s.origin.End(simBox, class, n) {
			s.fail("mail %d was sent before it was stored", m.id)
		}
		return
	}
	s.origin.queue = append(s.origin.queue, simWrite{simRecord: simRecord{m.id, class, n}})
}

func (s *sim) syncOrigin() {
	o := &s.origin
	for _, w := range o.queue {
		if m := s.mails[w.id]; w.held != "" && m.ended == "" { // nothing was heard of it meanwhile
			if o.End(simBox, w.class, w.n); s.origin.sent(w) {
				s.fail("mail %d has ended and is sent", w.id)
			}
			m.ended = w.held
			s.counts[w.held]++
		}
		if w.remove {
			o.disk = slices.DeleteFunc(o.disk, func(r simRecord) bool { return r.id == w.id })
			continue
		}
		o.disk = append(o.disk, w.simRecord)
		s.mails[w.id].stored = true
		o.Stored(simBox, w.class, w.n, uint64(w.id))
	}
	o.queue = o.queue[:0]
}

// sent reports whether a mail may have been sent.
func (o *simSpool) sent(w simWrite) bool {
	spool := o.spool(simBox, w.class)
	at, ok := spool.find(w.n)
	return ok && spool.items[at].maySent
}

func (s *sim) send(class proto.Class) {
	if b, ok := s.origin.Next(simBox, class, s.rng.IntN(2*MaxBundleBytes)); ok && !s.one(8) {
		s.net = append(s.net, simBundle{s.link, b})
		s.sent = append(s.sent[max(0, len(s.sent)-15):], simBundle{s.link, b})
	}
}

// deliver brings a bundle, any, to its home; sometimes a copy comes again later.
func (s *sim) deliver() {
	if len(s.net) == 0 {
		return
	}
	at := s.rng.IntN(len(s.net))
	if s.one(2) {
		at = 0
	}
	x := s.net[at]
	if !s.one(5) {
		s.net = slices.Delete(s.net, at, at+1)
	}
	for _, h := range s.homes {
		if x.b.To == h.peer {
			h.receive(x)
		}
	}
}

// hear brings an answer, any, to the origin.
func (s *sim) hear() {
	if len(s.back) == 0 {
		return
	}
	at := s.rng.IntN(len(s.back))
	if s.one(2) {
		at = 0
	}
	x := s.back[at]
	s.back = slices.Delete(s.back, at, at+1)
	if x.link != s.link || s.one(8) {
		return
	}
	out, err := s.origin.Answer(x.from, x.a)
	if err != nil {
		s.fail("%v", err)
		return
	}
	for _, ref := range out.Accepted {
		s.end(int(ref), "accepted", proto.CodeOK)
	}
	for _, r := range out.Refused {
		s.end(int(r.Ref), "refused", r.Code)
	}
	if out.Stopped == proto.CodeMoved {
		s.learn()
	}
}

// end notes that a mail has ended at its origin.
func (s *sim) end(id int, how string, code proto.Code) {
	m := s.mails[id]
	if m.ended != "" {
		s.fail("mail %d ended twice: %s, %s", id, m.ended, how)
	}
	m.ended, m.code = how, code
	s.counts[how]++
	s.origin.queue = append(s.origin.queue, simWrite{simRecord: simRecord{id: id}, remove: true})
	live := s.now <= m.notAfter+proto.Skew.Milliseconds() // the homes still have notes
	m.late = !live
	if how == "accepted" && live && !m.undone && !s.homeRolled && !m.sentOn && !s.homes[0].has(id) && !s.homes[1].has(id) {
		s.fail("mail %d is accepted, and no home took it", id)
	}
	if how == "refused" && code == proto.CodeExpired && live && !s.originRolled {
		s.fail("mail %d is refused before its time is over", id)
	}
	if how == "refused" && code != proto.CodeExpired && !m.denied && !m.undone {
		s.fail("mail %d is refused with %s", id, code.Name())
	}
}

// learn tells the origin who is the home. Sometimes it dies when it has sent what it has.
func (s *sim) learn() {
	s.syncOrigin()
	if !s.origin.SetHome(simBox, simPeer(s.home), s.gen) || !s.one(4) {
		return
	}
	for class := proto.Critical; class <= proto.Low; class++ {
		s.send(class)
		s.deliver()
	}
	s.startOrigin()
}

func (s *sim) reconnect() {
	s.link++
	s.origin.Reset(simBox)
}

func (s *sim) expire() {
	if s.one(6) {
		s.now += s.rng.Int64N(3 * proto.Skew.Milliseconds())
	}
	for _, x := range s.origin.Expire(s.now) {
		how := "expired"
		switch {
		case x.Accepted:
			how = "accepted"
		case x.Unheard:
			how = "unheard"
		}
		s.origin.queue = append(s.origin.queue, simWrite{simRecord{int(x.Ref), x.Class, x.N}, true, how})
	}
}

// cancel removes a mail that was never sent.
func (s *sim) cancel() {
	if len(s.origin.disk) == 0 {
		return
	}
	newest := min(len(s.origin.disk), 8)
	r := s.origin.disk[len(s.origin.disk)-1-s.rng.IntN(newest)]
	if s.mails[r.id].ended == "" && s.origin.Hold(simBox, r.class, r.n) {
		s.origin.queue = append(s.origin.queue, simWrite{r, true, "cancelled"})
	}
}

// startOrigin starts the origin again from its disk.
func (s *sim) startOrigin() {
	o := &s.origin
	if s.one(3) {
		s.syncOrigin()
	}
	for _, w := range o.queue {
		if m := s.mails[w.id]; w.remove {
			m.ended = "" // nobody remembers
			m.undone = m.undone || m.code == proto.CodeOK
		}
	}
	o.queue = nil
	o.boot++
	o.Origin = NewOrigin(o.boot)
	for _, r := range o.disk {
		if err := o.Load(simBox, r.class, r.n, s.mails[r.id].mail()); err != nil {
			s.fail("%v", err)
		}
	}
	o.SetHome(simBox, simPeer(s.home), s.gen)
	s.link++
	s.counts["origin started"]++
}

// putBackOrigin puts an old copy of the origin's disk back.
func (s *sim) putBackOrigin(old []simRecord) {
	s.originRolled = true
	s.counts["origin put back"]++
	s.origin.queue = nil
	s.origin.disk = slices.Clone(old)
	in := map[int]bool{}
	for _, r := range old {
		in[r.id] = true
	}
	for _, m := range s.mails {
		m.gone = !in[m.id] && m.ended == ""
		if in[m.id] {
			m.undone, m.ended = m.undone || m.ended != "", ""
		}
	}
	s.startOrigin()
}
