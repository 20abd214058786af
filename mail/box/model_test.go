package box

import (
	"fmt"
	"maps"
	"slices"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// A model is what the package does, in the plainest form: every rule is a search over all
// mails. It predicts each answer exactly.
type model struct {
	boxes  map[BoxID]*modelBox
	notes  chainNotes
	keys   map[string]modelKey
	ran    int64 // of earlier starts
	limit  int64 // of the bytes that are kept; 0: none
	boot   uint64
	boots  map[uint64]bool // all starts
	at     int64           // the newest time that is told
	bootN  int64           // running time of this start
	given  uint64
	bounce int // bounces that were due
	last   map[*Session]*modelLease

	producers map[proto.ProducerID]*modelProducer
	lastUse   []proto.ProducerID // the longest ago first
	taken     map[takenMail][32]byte
}

type modelKey struct {
	id  proto.MailID
	seq uint64
	sum uint64
	ran int64 // running time at which it was taken
}

type modelBox struct {
	settings BoxSettings
	next     uint64
	mails    map[uint64]*modelMail
	done     map[uint64]modelDone // kept
	untold   map[uint64]bool      // done, and their senders are to be told
	receipts map[uint64]string    // of a spool
	dedupes  map[uint64]modelKeyed
	subs     map[SubID]*modelSub
	counts   [mailStates]int
	ending   map[uint64]bool
	ids      map[uint64]proto.MailID // of all mails that there were
	first    uint64                  // of the mails of this start
	taken    map[uint64]uint64       // the start in which a mail was taken, or came here
	made     uint64                  // and the box
	given    uint64                  // deliveries of that start before it
}

type modelMail struct {
	large, tells        bool // its body is not in its letter; its sender wants to know when it is done
	class, size         int
	key, subject        string
	expiry, after, when int64
	origin              uint32
}

type modelSub struct {
	settings SubSettings
	read     map[uint64]bool // ended here, or passed at the start
	bad      map[uint64]bool // ended here, and not DONE
	tries    map[uint64]*modelTry
	leases   map[uint64]*modelLease
	blocked  map[string]bool
	dead     map[uint64]int64 // sizes
	picker   fair.Picker
}

type modelTry struct {
	attempts, abandons uint8
	due                int64
	deaths             int // readers in a row with which its deliveries ended
}

type modelLease struct {
	n, boot      uint64
	session      *Session
	until, first int64
	state        deliveryState
	deaths       int // of the mail when it was leased
}

func newModel() *model {
	return &model{
		boxes: map[BoxID]*modelBox{}, notes: chainNotes{}, keys: map[string]modelKey{}, last: map[*Session]*modelLease{},
		producers: map[proto.ProducerID]*modelProducer{}, taken: map[takenMail][32]byte{}, boots: map[uint64]bool{},
	}
}

func newModelBox(settings BoxSettings) *modelBox {
	return &modelBox{
		settings: settings, next: 1, mails: map[uint64]*modelMail{}, done: map[uint64]modelDone{}, untold: map[uint64]bool{}, receipts: map[uint64]string{},
		dedupes: map[uint64]modelKeyed{}, subs: map[SubID]*modelSub{}, ending: map[uint64]bool{}, ids: map[uint64]proto.MailID{}, taken: map[uint64]uint64{},
	}
}

func newModelSub(settings SubSettings) *modelSub {
	u := &modelSub{settings: settings, read: map[uint64]bool{}, bad: map[uint64]bool{}, tries: map[uint64]*modelTry{}, blocked: map[string]bool{}, dead: map[uint64]int64{}}
	u.forgetLeases()
	return u
}

func (u *modelSub) forgetLeases() {
	u.leases, u.picker = map[uint64]*modelLease{}, fair.Picker{}
}

// restart forgets what is in memory only.
func (m *model) restart() {
	m.given = 0
	for _, b := range m.boxes {
		b.ending = map[uint64]bool{}
		for _, u := range b.subs {
			u.forgetLeases()
		}
	}
}

// pending returns the mails that have not ended for a subscription, in order.
func (b *modelBox) pending(u *modelSub) (out []uint64) {
	for _, seq := range slices.Sorted(maps.Keys(b.mails)) {
		if b.isPending(u, seq) {
			out = append(out, seq)
		}
	}
	return out
}

func (b *modelBox) isPending(u *modelSub, seq uint64) bool {
	m := b.mails[seq]
	return m != nil && !u.read[seq] && (b.settings.Kind == Mailbox || proto.MatchSubject(u.settings.Filter, m.subject))
}

func (b *modelBox) laneKey(m *modelMail) string {
	if b.settings.PerPeer {
		return fmt.Sprintf("%d/%s", m.origin, m.key)
	}
	return m.key
}

// lane returns the pending mails of the same lane, in order.
func (b *modelBox) lane(u *modelSub, seq uint64) (out []uint64) {
	for _, x := range b.pending(u) {
		if b.laneKey(b.mails[x]) == b.laneKey(b.mails[seq]) {
			out = append(out, x)
		}
	}
	return out
}

// free reports whether a mail could be leased, its lane aside.
func (b *modelBox) free(u *modelSub, seq uint64, now Now) bool {
	m := b.mails[seq]
	for _, l := range u.leases {
		if l.state == live && l.deaths >= 2 && u.deaths(seq) >= 2 {
			return false
		}
	}
	if l := u.leases[seq]; l != nil && l.state != returned || b.ending[seq] || now.Wall >= m.expiry || m.after > now.Wall {
		return false
	}
	return u.tries[seq] == nil || u.tries[seq].due <= now.Wall
}

// ready returns the candidates by class.
func (b *modelBox) ready(u *modelSub, now Now) (byClass [fair.Classes][]uint64) {
	for _, seq := range b.pending(u) {
		m := b.mails[seq]
		c := m.class
		if m.key != "" {
			lane := b.lane(u, seq)
			if lane[0] != seq || u.blocked[b.laneKey(m)] {
				continue
			}
			for _, x := range lane {
				c = min(c, b.mails[x].class)
			}
		}
		if b.free(u, seq, now) {
			byClass[c] = append(byClass[c], seq)
		}
	}
	return byClass
}

// next returns the mail that a session is given next, with credit; 0: none.
func (m *model) next(b *modelBox, u *modelSub, x *Session, readers []*simReader, now Now) (seq uint64, c int, waits [fair.Classes]bool) {
	candidates := b.ready(u, now)
	for c := range waits {
		waits[c] = len(candidates[c]) > 0
	}
	c = u.picker.Next(waits)
	if c < 0 {
		return 0, c, waits
	}
	suspect, s := u.deaths(candidates[c][0]) > 0, m.session(u, x, 0, now)
	if s.alone || suspect && s.held > 0 && s.recent || u.settings.Strategy != Ordered && m.chosen(u, readers, suspect, now) != x {
		return 0, c, waits
	}
	return candidates[c][0], c, waits
}

// deliver returns what a session with credit is given.
func (m *model) deliver(b *modelBox, u *modelSub, x *Session, readers []*simReader, n, credit int, now Now) (out []uint64) {
	lease := func(seq uint64) {
		d := u.settings.Lease
		if d == 0 {
			d = leases[b.mails[seq].class]
		}
		m.given++
		m.last[x] = &modelLease{m.given, m.boot, x, now.Mono + d.Milliseconds(), now.Mono, live, u.deaths(seq)}
		u.leases[seq] = m.last[x]
		out = append(out, seq)
	}
	for len(out) < min(n, credit) {
		seq, c, waits := m.next(b, u, x, readers, now)
		if seq == 0 {
			break
		}
		u.picker.Took(c, waits)
		lease(seq)
		if b.mails[seq].key == "" || u.deaths(seq) > 0 {
			continue
		}
		lane := b.lane(u, seq)
		for i := 1; i < min(int(u.settings.KeyBatch), len(lane)) && len(out) < min(n, credit) && u.deaths(lane[i]) == 0 && b.free(u, lane[i], now); i++ {
			lease(lane[i])
		}
	}
	return out
}

// settle returns the code of a settlement, and notes what it does in memory.
func (m *model) settle(b *modelBox, u *modelSub, x *Settlement, now Now) proto.Code {
	h := x.Handle
	l := u.leases[h.Seq]
	switch {
	case h.Seq >= b.next || h.Boot > m.boot || h.Boot < m.boot && !m.mayHaveGiven(b, h):
		return proto.CodeBadForm
	case !b.isPending(u, h.Seq) && x.Op == Ack && !u.bad[h.Seq]:
		return proto.CodeOK
	case !b.isPending(u, h.Seq), b.stands(), b.ending[h.Seq], l != nil && l.state == ended:
		return proto.CodeStale
	case h.Boot == m.boot && l == nil:
		return proto.CodeBadForm
	case l != nil && (l.n != h.N || h.Boot != l.boot):
		return proto.CodeStale
	case x.Op != Ack && (l == nil || l.state != live):
		return proto.CodeStale
	}
	lane := []uint64{h.Seq}
	if b.mails[h.Seq].key != "" {
		lane = b.lane(u, h.Seq)
	}
	at := slices.Index(lane, h.Seq)
	if x.Op == Ack {
		for _, before := range lane[:at] {
			if u.leases[before] == nil || u.leases[before].state != acked {
				return proto.CodeBusy
			}
		}
		if l == nil {
			l = &modelLease{n: h.N, boot: h.Boot}
			u.leases[h.Seq] = l
		}
		l.state = acked
		return proto.CodeOK
	}
	if x.Op == Extend {
		l.until = min(now.Mono+x.Delay.Milliseconds(), l.first+MaxLease.Milliseconds())
		return proto.CodeOK
	}
	tries, _ := u.spent(h.Seq)
	switch {
	case x.Op == Return:
		l.state = returned
	case x.Op == Final || x.Op == Bounce || x.Op == Nack && tries+1 >= u.attempts():
		l.state = ended
	default:
		l.state = nacked
	}
	m.returnBehind(b, u, h.Seq)
	return proto.CodeOK
}

func (u *modelSub) attempts() uint8 {
	if u.settings.Attempts == 0 {
		return 3
	}
	return u.settings.Attempts
}

func (u *modelSub) deaths(seq uint64) int {
	if t := u.tries[seq]; t != nil {
		return t.deaths
	}
	return 0
}

func (u *modelSub) spent(seq uint64) (attempts, abandons uint8) {
	if t := u.tries[seq]; t != nil {
		return t.attempts, t.abandons
	}
	return 0, 0
}

// returnBehind takes back what is leased behind a mail in its lane.
func (m *model) returnBehind(b *modelBox, u *modelSub, seq uint64) {
	if b.mails[seq].key == "" {
		return
	}
	lane := b.lane(u, seq)
	for _, x := range lane[slices.Index(lane, seq)+1:] {
		if l := u.leases[x]; l != nil && l.state == live {
			l.state = returned
		}
	}
}

// lapse ends the leases that are over, in memory, and returns them as box/sub/seq.
func (m *model) lapse(now Now) (out []string) {
	for id, b := range m.boxes {
		for sid, u := range b.subs {
			type at struct {
				until int64
				seq   uint64
			}
			var over []at
			for seq, l := range u.leases {
				if l.state == live && l.until <= now.Mono {
					over = append(over, at{l.until, seq})
				}
			}
			slices.SortFunc(over, func(x, y at) int { return int(x.until-y.until)*1000 + int(x.seq) - int(y.seq) })
			for _, x := range over {
				if u.leases[x.seq].state != live {
					continue // taken back behind another one
				}
				out = append(out, fmt.Sprintf("%d/%d/%d", id, sid, x.seq))
				m.fail(b, u, x.seq, CauseLapsed)
			}
		}
	}
	slices.Sort(out)
	return out
}

// fail notes that a record of a failed delivery was made.
func (m *model) fail(b *modelBox, u *modelSub, seq uint64, cause Cause) {
	tries, abandons := u.spent(seq)
	u.leases[seq].state = nacked
	if cause == CauseAbandoned && abandons+1 >= MaxAbandons || cause == CauseLapsed && tries+1 >= u.attempts() {
		u.leases[seq].state = ended
	}
	m.returnBehind(b, u, seq)
}

// expiring returns the mails for which Tick makes an END.
func (m *model) expiring(now Now, clean bool) (out []string) {
	for id, b := range m.boxes {
		if b.settings.Kind == Spool || b.stands() {
			continue
		}
		old := clean && !b.keepsAll() && b.settings.Age > 0
		for _, seq := range slices.Sorted(maps.Keys(b.mails)) {
			x, busy := b.mails[seq], b.ending[seq]
			for _, u := range b.subs {
				if l := u.leases[seq]; l != nil && l.state != returned {
					busy = true
				}
			}
			old = old && x.when/1000+int64(b.settings.Age.Seconds()) <= now.Wall/1000
			if !busy && now.Wall >= x.expiry || old && !b.ending[seq] {
				b.ending[seq] = true
				out = append(out, fmt.Sprintf("%d/%d", id, seq))
			}
		}
	}
	slices.Sort(out)
	return out
}

func (b *modelBox) keepsAll() bool { return b.settings.Kind != Topic || b.settings.Interest }

// bytes returns what all letters take.
func (m *model) bytes() (n int64) {
	for _, b := range m.boxes {
		n += b.waiting()
		for _, u := range b.subs {
			for _, size := range u.dead {
				n += size
			}
		}
	}
	return n
}

func (b *modelBox) waiting() (n int64) {
	for _, x := range b.mails {
		n += int64(x.size)
	}
	return n
}

// mail applies a MAIL record and returns the result that is due. Where the answer may be
// either, it takes that of the state.
func (m *model) mail(rec *Mail, l *proto.Letter, got Result) Result {
	if r, again := m.produced(rec, l); again {
		return r
	}
	b, it := m.boxes[rec.Box], Numbered{N: rec.Number, Prev: rec.Prev}
	c, chained := Chain{proto.PeerID{byte(rec.Origin)}, b.settings.Name, rec.Chain}, rec.Chain != 0 && rec.Origin != 0
	if b.moves() {
		return Result{Code: proto.CodeBusy}
	}
	if chained {
		switch m.notes.Check(c, it) {
		case proto.CodeDuplicate:
			return Result{Duplicate: true}
		case proto.CodeBusy:
			return Result{Code: proto.CodeBusy}
		}
	}
	r := m.admit(b, rec, l, got)
	if chained && (r.Code == proto.CodeOK || r.ForGood) {
		m.notes.Note(c, it, 0)
	}
	m.took(rec, l, r)
	if r.Code != proto.CodeOK || r.Duplicate {
		return r
	}
	m.produce(rec, l)
	x := &modelMail{large: !l.Object.IsZero(), tells: l.Flags&proto.LetterTellEnd != 0, class: int(l.Class) - 1, size: len(rec.Letter), key: string(l.Key), expiry: (l.NotAfter + 999) / 1000 * 1000, after: l.NotBefore, when: rec.At, origin: rec.Origin}
	if b.settings.Kind == Topic {
		x.subject = string(l.Subject)
	}
	for !b.keepsAll() && len(b.mails) > 0 && (len(b.mails) >= int(b.settings.Mails) || b.waiting()+int64(x.size) > int64(b.settings.Bytes)) {
		m.end(b, slices.Min(slices.Collect(maps.Keys(b.mails))), Dropped)
	}
	r.Seq = b.next
	b.next++
	b.mails[r.Seq], b.ids[r.Seq], b.taken[r.Seq] = x, l.ID, m.boot
	if len(l.Dedupe) > 0 {
		b.dedupes[r.Seq] = modelKeyed{fmt.Sprintf("%d/%s", rec.Origin, l.Dedupe), rec.At, modelKey{l.ID, r.Seq, contentHash(l), m.ran + m.bootN}}
		m.keys[m.key(rec, l)] = b.dedupes[r.Seq].modelKey
	}
	switch {
	case b.settings.Kind == Spool: // its home decides
	case l.Hops > MaxHops:
		for _, u := range b.subs {
			if b.isPending(u, r.Seq) {
				u.dead[r.Seq] = int64(x.size)
			}
		}
		m.end(b, r.Seq, Dead)
	case b.settings.Kind == Topic && b.settings.Interest && b.unread(r.Seq) == 0:
		m.end(b, r.Seq, Done)
	}
	return r
}

func (m *model) key(rec *Mail, l *proto.Letter) string {
	return fmt.Sprintf("%d/%d/%s", rec.Box, rec.Origin, l.Dedupe)
}

func (m *model) admit(b *modelBox, rec *Mail, l *proto.Letter, got Result) Result {
	if l.NotAfter <= rec.At {
		return Result{Code: proto.CodeExpired, ForGood: true}
	}
	if k, ok := m.keys[m.key(rec, l)]; ok && len(l.Dedupe) > 0 {
		age := m.ran + m.bootN - k.ran
		// Kept for 24 hours of running time, forgotten after 36 hours and one period.
		if age < 24*3600_000 || got.Duplicate && age <= 36*3600_000+2*agePeriod.Milliseconds()+3600_000 {
			if k.sum != contentHash(l) {
				return Result{Code: proto.CodeDenied, ForGood: true}
			}
			return Result{Duplicate: true, ID: k.id, Seq: k.seq}
		}
		if got.Code == proto.CodeDenied {
			return Result{Code: proto.CodeDenied, ForGood: true}
		}
	}
	size, held, heldBytes := int64(len(rec.Letter)), 0, int64(0)
	for _, x := range b.mails {
		if x.origin == rec.Origin {
			held++
			heldBytes += int64(x.size)
		}
	}
	full := b.keepsAll() && (len(b.mails) >= int(b.settings.Mails) || b.waiting()+size > int64(b.settings.Bytes))
	share := b.keepsAll() && rec.Origin != 0 &&
		!(fair.Within(held, len(b.mails), int(b.settings.Mails)) && fair.Within(heldBytes, b.waiting(), int64(b.settings.Bytes)))
	if full || share {
		return Result{Code: proto.CodeFull}
	}
	return Result{}
}

func (b *modelBox) unread(seq uint64) (n int) {
	for _, u := range b.subs {
		if b.isPending(u, seq) {
			n++
		}
	}
	return n
}

// end ends a mail altogether.
func (m *model) end(b *modelBox, seq uint64, state MailState) {
	if b.settings.Kind == Topic && state != Dead && b.unread(seq) == 0 {
		state = Done
	}
	for _, u := range b.subs {
		if b.isPending(u, seq) {
			u.close(seq, state)
		}
	}
	if state == Dead || b.settings.Kind != Topic && (state == Expired || state == Cancelled) {
		m.bounce++
	}
	if state == Done && b.settings.Kind == Mailbox {
		m.keep(b, seq)
		if b.mails[seq].tells {
			b.untold[seq] = true
		}
	}
	b.counts[state]++
	delete(b.mails, seq)
	delete(b.ending, seq)
}

func (u *modelSub) close(seq uint64, state MailState) {
	u.read[seq] = true
	if state != Done {
		u.bad[seq] = true
	}
	delete(u.leases, seq)
	delete(u.tries, seq)
}

// finish ends a mail for one subscription.
func (m *model) finish(b *modelBox, u *modelSub, seq uint64, state MailState) {
	x := b.mails[seq]
	if state == Dead {
		u.dead[seq] = int64(x.size)
		if u.settings.Block && x.key != "" {
			u.blocked[b.laneKey(x)] = true
		}
	}
	if b.settings.Kind == Mailbox {
		m.end(b, seq, state)
		return
	}
	if state != Done {
		m.bounce++
	}
	u.close(seq, state)
	if b.settings.Interest && b.unread(seq) == 0 {
		m.end(b, seq, Done)
	}
}

// apply applies a record other than MAIL.
func (m *model) apply(rec []byte) error {
	h, d, err := parseHead(rec)
	if err != nil {
		return err
	}
	b := m.boxes[h.box]
	switch h.typ {
	case TypeAck:
		u := b.subs[h.sub]
		for _, seq := range d.seqs(nil) {
			switch {
			case u == nil && b.mails[seq] != nil: // of a spool
				m.end(b, seq, Done)
			case u != nil && b.isPending(u, seq):
				m.finish(b, u, seq, Done)
			}
		}
	case TypeBox, TypeTold, TypeTaken:
		m.applyNew(h, &d)
	case TypeNack:
		n, u := d.nack(), b.subs[h.sub]
		if b.isPending(u, n.seq) {
			deaths := 0
			if n.cause == CauseLapsed || n.cause == CauseAbandoned {
				deaths = u.deaths(n.seq) + 1
			}
			u.tries[n.seq] = &modelTry{n.attempts, n.abandons, n.due, deaths}
			if l := u.leases[n.seq]; l != nil && l.state == nacked {
				l.state = returned
			}
		}
	case TypeEnd:
		e, u := d.end(), b.subs[h.sub]
		for _, seq := range e.seqs {
			switch {
			case h.flags == flagWhole && b.mails[seq] != nil:
				m.end(b, seq, e.state)
			case h.flags != flagWhole && b.isPending(u, seq):
				m.finish(b, u, seq, e.state)
			}
		}
	case TypeAge:
		a := age{d.u64(), d.time(), d.time()}
		if a.boot > m.boot {
			m.ran, m.boot, m.bootN = m.ran+m.bootN, a.boot, 0
			m.boots[a.boot] = true
			for _, b := range m.boxes {
				b.first = b.next
			}
		}
		m.bootN = max(m.bootN, a.ran)
		if m.at = a.at; a.at > 0 {
			m.forgetOld()
		}
		m.forgetProducers()
	}
	if d.failed {
		return ErrBadRecord
	}
	return nil
}

// start sets what a new subscription, or one that seeks, has read.
func (b *modelBox) start(u *modelSub, from Start) {
	dead := u.dead
	*u = *newModelSub(u.settings)
	u.dead = dead
	newest := map[string]uint64{}
	for seq, x := range b.mails {
		newest[x.subject] = max(newest[x.subject], seq)
	}
	first := b.next // for StartTime
	for seq, x := range b.mails {
		if x.when/1000 >= from.Ms/1000 {
			first = min(first, seq)
		}
	}
	for seq := range b.next {
		switch from.At {
		case StartNew:
			u.read[seq] = true
		case StartSeq:
			u.read[seq] = seq < from.Seq
		case StartTime:
			u.read[seq] = seq < first
		case StartLast:
			u.read[seq] = b.mails[seq] == nil || newest[b.mails[seq].subject] != seq
		}
	}
}

// endRead ends what nobody waits for.
func (m *model) endRead(b *modelBox) {
	for _, seq := range slices.Sorted(maps.Keys(b.mails)) {
		if b.settings.Interest && b.unread(seq) == 0 {
			m.end(b, seq, Done)
		}
	}
}
