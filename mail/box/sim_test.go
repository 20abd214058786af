package box

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"pgregory.net/rapid"
)

// A sim drives a state and a model by the same random operations, and compares every
// answer. Records that the state makes are applied later, in order, so that settlements,
// lapses and ends are in flight together.
type sim struct {
	choose  func(n int) int // random in [0, n)
	s       *State
	m       *model
	now     Now
	log     [][]byte
	flight  [][]byte // made, and not applied yet
	handles []Settlement
	readers []*simReader
	numbers map[simChain]proto.Seq
	mails   [][]byte // MAIL records of chains, to be repeated
	saved   []byte   // a checkpoint
	savedAt int      // records applied before it
	ended   int      // mails whose end was told
	bounced int
	freed   map[[32]byte]bool // bodies that nobody needs any more
	ids     uint32
	sole    bool     // all mail is that of one origin to one box
	trace   []string // what was done
	cleaned int64    // Now.Mono of the last retention
	boxes   [3]BoxID // a mailbox and two topics
	moves   byte     // of boxes to another home
}

type simReader struct {
	x       *Session
	box     BoxID
	sub     SubID
	credit  int
	waiting bool // Deliver gave it less than it asked for: it waits to be woken
	woken   bool // it was in Output.Ready
}

func (s *sim) did(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

// TestModel compares the state with the model, which has the rules of I23, and of I21 who is
// told of an end: in an ordinary run 100 histories of 250 steps, and with BALEFIRE_LONG=1 a
// million steps.
func TestModel(t *testing.T) {
	histories := uint64(100)
	if os.Getenv("BALEFIRE_LONG") != "" {
		histories = 4000
	}
	t.Logf("counted: %d histories", histories)
	for seed := range histories {
		if err := history(seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// stepsOfHistory is how many operations a history has.
const stepsOfHistory = 250

// history runs one history by seed.
func history(seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 8))
	return simulate(r.IntN, stepsOfHistory)
}

// TestModelByRapid lets rapid look for the shortest history that fails.
func TestModelByRapid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		if err := simulate(choose, rapid.IntRange(1, 60).Draw(t, "steps")); err != nil {
			t.Fatal(err)
		}
	})
}

func simulate(choose func(int) int, steps int) (err error) {
	s := &sim{choose: choose, s: New(chainNotes{}), m: newModel(), now: Now{Wall: start, Mono: 5000}, numbers: map[simChain]proto.Seq{}, freed: map[[32]byte]bool{}}
	s.s.producers.limit = maxSimProducers
	step := 0
	defer func() {
		if p := recover(); p != nil {
			failure, ok := p.(simFailure)
			if !ok {
				failure = simFailure(fmt.Sprintf("panic: %v %s", p, debug.Stack()))
			}
			err = fmt.Errorf("step %d: %s\nafter\n%s", step, failure, strings.Join(s.trace[max(0, len(s.trace)-20):], "\n"))
		}
	}()
	s.setUp()
	for ; step < steps; step++ {
		s.step()
		s.check()
	}
	return nil
}

// A simChain is an origin and a box.
type simChain struct {
	origin uint32
	box    BoxID
}

func chainOf(m *Mail) simChain { return simChain{m.Origin, m.Box} }

type simFailure string

func (s *sim) failf(format string, args ...any) { panic(simFailure(fmt.Sprintf(format, args...))) }

func (s *sim) one(n int) bool { return s.choose(n) == 0 }

// apply applies a record that is not a MAIL to both.
func (s *sim) apply(rec []byte) Output {
	rec = bytes.Clone(rec)
	s.log = append(s.log, rec)
	s.did("apply %x", rec)
	var out Output
	if err := s.s.Apply(Place(len(s.log)), rec, &out); err != nil {
		s.failf("apply %x: %v", rec, err)
	}
	if err := s.m.apply(rec); err != nil {
		s.failf("the model cannot apply %x: %v", rec, err)
	}
	s.note(&out)
	return out
}

// note takes what a call wants done.
func (s *sim) note(out *Output) {
	for _, e := range out.Ends {
		if e.State == Done || e.Cause != CauseNone || e.State == Dropped {
			s.ended++
		}
	}
	for _, e := range out.Bounces {
		if e.State != Done {
			s.bounced++
		}
	}
	for _, name := range out.Objects {
		if s.freed[name] {
			s.failf("the body %x was given up twice", name[:4])
		}
		s.freed[name] = true
	}
	for _, x := range out.Ready {
		for _, r := range s.readers {
			if r.x == x {
				r.waiting, r.woken = false, true
			}
		}
	}
	s.flight = append(s.flight, cloneRecords(out.Records)...)
}

func (s *sim) setUp() {
	var out Output
	s.s.Start(s.now, 1, &out)
	s.note(&out)
	s.commit(len(s.flight))
	boxes := []BoxSettings{
		{Name: "agent:ceo", Kind: Mailbox, PerPeer: s.one(3)},
		{Name: "topic:orders", Kind: Topic, Age: 2 * time.Hour},
		{Name: "topic:jobs", Kind: Topic, Interest: true},
		{Name: "out:agent:far", Kind: Spool, Home: proto.PeerID{9}, Generation: 1},
	}
	for i, b := range boxes {
		b.Mails, b.Bytes = uint32(8+s.choose(30)), uint64(1500+s.choose(4000))
		if i == 0 {
			s.chooseKeep(&b)
		}
		id := BoxID(i + 1)
		s.m.boxes[id] = newModelBox(b)
		s.m.boxes[id].made = s.m.boot
		if r := s.apply(EncodeBox(id, &b)).Results[0]; r.Code != proto.CodeOK {
			s.failf("box: %+v", r)
		}
	}
	if s.one(3) {
		s.m.limit = int64(500 + s.choose(1000))
		s.apply(EncodeLimits(Limits{Kept: uint64(s.m.limit)}))
	}
	s.boxes, s.sole = [3]BoxID{1, 2, 3}, s.one(10)
	s.m.boxes[1].subs[0] = newModelSub(SubSettings{})
	s.setSub(1, 0)
	s.apply(EncodePeer(1, proto.PeerID{1}))
	s.apply(EncodePeer(2, proto.PeerID{2}))
	for range 1 + s.choose(2) {
		s.newSub(2)
		s.newSub(3)
	}
}

var simFilters = []string{"", "a.>", "*.b", "b"}
var simSubjects = []string{"a.b", "a.c", "b", ""}

func (s *sim) subSettings(old SubSettings) SubSettings {
	old.Attempts, old.KeyBatch, old.Block = uint8(s.choose(4)), uint8(s.choose(4)), s.one(3)
	old.Paused, old.Lease = s.one(8), []time.Duration{0, 7 * time.Second, 10 * time.Minute}[s.choose(3)]
	old.Mode, old.Strategy = Mode(2*s.choose(2)), Ordered
	if old.Mode == Shared && s.one(2) {
		old.Strategy = RoundRobin + Strategy(s.choose(3))
	}
	return old
}

func (s *sim) newSub(id BoxID) {
	b := s.m.boxes[id]
	sid := SubID(len(b.subs) + 1)
	if sid > 3 {
		return
	}
	settings := s.subSettings(SubSettings{Name: fmt.Sprint("sub", sid), Filter: simFilters[s.choose(len(simFilters))]})
	from := s.from(b)
	u := newModelSub(settings)
	b.start(u, from)
	b.subs[sid] = u
	s.apply(EncodeSub(id, sid, &settings, from))
}

func (s *sim) from(b *modelBox) Start {
	return Start{At: StartAt(s.choose(5)), Seq: uint64(s.choose(int(b.next) + 3)), Ms: s.now.Wall - int64(s.choose(4))*600_000}.canonical()
}

// canonical returns s as it is after a round trip.
func (s Start) canonical() Start {
	if s.At != StartSeq {
		s.Seq = 0
	}
	if s.At != StartTime {
		s.Ms = 0
	}
	return s
}

// setSub changes the settings of a subscription.
func (s *sim) setSub(id BoxID, sid SubID) {
	u := s.m.boxes[id].subs[sid]
	if u == nil {
		return
	}
	u.settings = s.subSettings(u.settings)
	s.apply(EncodeSub(id, sid, &u.settings, Start{}))
}

// commit applies the first n records in flight.
func (s *sim) commit(n int) {
	for _, rec := range s.flight[:n] {
		s.flight = s.flight[1:]
		s.apply(rec)
	}
}

func (s *sim) step() {
	if s.moving() >= 0 && s.one(6) {
		s.handOver()
		return
	}
	switch k := s.choose(100); {
	case k < 28:
		s.send()
	case k < 49:
		s.deliver()
	case k < 68:
		s.settle()
	case k < 70:
		s.die()
	case k < 79:
		s.commit(s.choose(len(s.flight) + 1))
	case k < 85:
		s.advance()
	case k < 88:
		s.attachOrDetach()
	case k < 89:
		s.restart()
	case k < 90:
		s.saved, s.savedAt = s.save(s.s), len(s.log)
	case k < 92:
		s.far()
	case k < 93:
		s.tell()
	case k < 95:
		s.handOver()
	default:
		s.manage()
	}
}

func (s *sim) deliver() {
	if len(s.readers) == 0 {
		return
	}
	s.deliverTo(s.readers[s.choose(len(s.readers))], 1+s.choose(5))
}

func (s *sim) deliverTo(r *simReader, n int) {
	b := s.m.boxes[r.box]
	u := b.subs[r.sub]
	var want []uint64
	if !u.settings.Paused && !b.moves() && (u.settings.Mode != Failover || r == s.active(r.box, r.sub)) {
		want = s.m.deliver(b, u, r.x, s.readersOf(r.box, r.sub), n, s.creditOf(r), s.now)
	}
	var out Output
	given := s.m.given - uint64(len(want))
	got := s.s.Deliver(s.now, r.x, n, nil, &out)
	s.did("%p of %d/%d takes %d: %v", r, r.box, r.sub, n, seqs(got))
	if !slices.Equal(seqs(got), want) {
		s.failf("%d/%d delivered %v, want %v", r.box, r.sub, seqs(got), want)
	}
	s.expire(&out)
	for i, d := range got {
		m := b.mails[d.Handle.Seq]
		attempts, _ := u.spent(d.Handle.Seq)
		if d.Handle.Boot != s.m.boot || d.Handle.N != given+uint64(i)+1 || d.Attempt != attempts+1 || s.s.classOf(r.box, d) != m.class || d.Older != (d.Handle.Seq < b.first) || d.Until != u.leases[d.Handle.Seq].until {
			s.failf("delivery %+v of %+v", d, m)
		}
		s.handles = append(s.handles, Settlement{Box: r.box, Sub: r.sub, Handle: d.Handle})
	}
	r.waiting, r.woken = len(got) < n, false
	s.note(&out)
}

// expire checks the ENDs that Deliver made.
func (s *sim) expire(out *Output) {
	for _, rec := range out.Records {
		h, d, _ := parseHead(rec)
		for _, seq := range d.end().seqs {
			if m := s.m.boxes[h.box].mails[seq]; m == nil || s.now.Wall < m.expiry {
				s.failf("mail %d of %d expired early", seq, h.box)
			}
			s.m.boxes[h.box].ending[seq] = true
		}
	}
}

// creditOf returns how many more deliveries a session takes.
func (s *sim) creditOf(r *simReader) int {
	held := 0
	for _, l := range s.m.boxes[r.box].subs[r.sub].leases {
		if l.session == r.x && l.state == live {
			held++
		}
	}
	if held != r.x.held {
		s.failf("a session holds %d, want %d", r.x.held, held)
	}
	return r.credit - held
}

// readersOf returns the readers of a subscription, the oldest first.
func (s *sim) readersOf(id BoxID, sid SubID) (all []*simReader) {
	for _, r := range s.readers {
		if r.box == id && r.sub == sid {
			all = append(all, r)
		}
	}
	return all
}

func (s *sim) active(id BoxID, sid SubID) (best *simReader) {
	for _, r := range s.readersOf(id, sid) {
		if best == nil || r.x.priority > best.x.priority {
			best = r
		}
	}
	return best
}

func (s *sim) settle() {
	if len(s.handles) == 0 {
		return
	}
	var list []Settlement
	for range 1 + s.choose(3) {
		// Mostly a recent handle, sometimes one of long ago.
		n := len(s.handles)
		x := s.handles[n-1-s.choose(min(n, 6+(n-6)*(s.choose(5)/4)))]
		x.Op = []Op{Ack, Ack, Ack, Nack, Nack, Final, Defer, Extend, Bounce, Return}[s.choose(10)]
		if x.Op != Ack && x.Op != Final && x.Op != Bounce {
			x.Delay = time.Duration(s.choose(3)) * 20 * time.Second
		}
		list = append(list, x)
	}
	s.settleAll(list)
	s.settleElsewhere(list[0])
}

// settleAll settles in both, and compares the codes.
func (s *sim) settleAll(list []Settlement) {
	var want []proto.Code
	for i := range list {
		b := s.m.boxes[list[i].Box]
		want = append(want, s.m.settle(b, b.subs[list[i].Sub], &list[i], s.now))
	}
	var out Output
	s.s.Settle(s.now, list, &out)
	s.did("settle %+v: %v", list, out.Settled)
	for i, r := range out.Settled {
		if r.Code != want[i] {
			s.failf("%d of %+v: %v, want %v", i, list, r.Code, want[i])
		}
	}
	s.checkDues(&out, list)
	s.note(&out)
}

// settleElsewhere acknowledges a mail as if another home had given it, or a start before it was here.
func (s *sim) settleElsewhere(x Settlement) {
	x.Op, x.Delay = Ack, 0
	for boot := range s.m.boot {
		if x.Handle.Boot = boot; s.m.mayHaveGiven(s.m.boxes[x.Box], x.Handle) {
			continue
		}
		var out Output
		if s.s.Settle(s.now, []Settlement{x}, &out); out.Settled[0].Code != proto.CodeBadForm || len(out.Records) > 0 {
			s.failf("%+v, which this home did not give: %v", x, out.Settled)
		}
	}
}

// checkDues checks what was spent by what was given back, and when it is due.
func (s *sim) checkDues(out *Output, list []Settlement) {
	for _, rec := range out.Records {
		h, d, _ := parseHead(rec)
		if h.typ != TypeNack {
			continue
		}
		n := d.nack()
		attempts, abandons := s.m.boxes[h.box].subs[h.sub].spent(n.seq)
		switch n.cause {
		case CauseNacked, CauseLapsed:
			attempts++
		case CauseAbandoned:
			abandons++
		}
		if n.attempts != attempts || n.abandons != abandons {
			s.failf("%v spent %d attempts and %d abandons, want %d and %d", n.cause, n.attempts, n.abandons, attempts, abandons)
		}
		wait := time.Duration(n.due-n.at) * time.Millisecond
		i := -1
		for j, x := range list {
			if out.Settled[j].Code == proto.CodeOK && x.Box == h.box && x.Sub == h.sub && x.Handle.Seq == n.seq && (x.Op == Nack || x.Op == Defer) {
				i = j
			}
		}
		switch {
		case n.cause == CauseNacked && list[i].Delay == 0 || n.cause == CauseLapsed:
			least := min(MaxBackoff, time.Second<<(n.attempts-1))
			if wait < least || wait > least*5/4 {
				s.failf("attempt %d waits %v", n.attempts, wait)
			}
		case n.cause == CauseAbandoned && wait != 0, (n.cause == CauseNacked || n.cause == CauseDeferred) && list[i].Delay != wait:
			s.failf("cause %v waits %v", n.cause, wait)
		}
	}
}

// advance lets the state look at the time, as a home does soon after all that it did, lets time pass,
// and the state look again: if it finds anything, it has said before that it would.
func (s *sim) advance() {
	s.tick()
	next, waits := s.s.Next(s.now)
	d := []int64{100, 1000, 6000, 70_000, 40 * 60_000, 4 * 3600_000}[s.choose(6)]
	s.now.Wall, s.now.Mono, s.now.Rand = s.now.Wall+d, s.now.Mono+d, uint64(s.choose(1<<30))
	s.did("%d ms pass", d)
	if s.tick() && (!waits || next > s.now.Mono) {
		s.failf("there was something to do at %d, and the next time was said to be %d, %v", s.now.Mono, next, waits)
	}
}

// tick lets the state look at the time, and reports whether a mail lapsed or ended.
func (s *sim) tick() bool {
	s.now.Doubted = s.now.Doubted && s.now.Rand%4 > 0
	clean := s.now.Mono-s.cleaned >= cleanPeriod.Milliseconds()
	if clean {
		s.cleaned = s.now.Mono
	}
	lapsed := s.m.lapse(s.now)
	expired := s.m.expiring(s.now, clean)
	var out Output
	s.s.Tick(s.now, &out)
	s.did("tick: %d records", len(out.Records))
	var gotLapsed, gotExpired []string
	for _, rec := range out.Records {
		h, d, _ := parseHead(rec)
		switch h.typ {
		case TypeNack:
			gotLapsed = append(gotLapsed, fmt.Sprintf("%d/%d/%d", h.box, h.sub, d.nack().seq))
		case TypeEnd:
			e := d.end()
			for _, seq := range e.seqs {
				if h.flags == flagWhole {
					gotExpired = append(gotExpired, fmt.Sprintf("%d/%d", h.box, seq))
				} else {
					gotLapsed = append(gotLapsed, fmt.Sprintf("%d/%d/%d", h.box, h.sub, seq))
				}
			}
		}
	}
	slices.Sort(gotLapsed)
	slices.Sort(gotExpired)
	if !slices.Equal(lapsed, gotLapsed) || !slices.Equal(expired, gotExpired) {
		s.failf("lapsed %v, want %v; expired %v, want %v", gotLapsed, lapsed, gotExpired, expired)
	}
	s.checkDues(&out, nil)
	s.note(&out)
	return len(gotLapsed)+len(gotExpired) > 0
}

func (s *sim) attachOrDetach() {
	if len(s.readers) > 6 || len(s.readers) > 0 && s.one(2) {
		s.detach(s.readers[s.choose(len(s.readers))], s.one(2))
		return
	}
	id, sid := s.boxes[s.choose(3)], SubID(0)
	if id != s.boxes[0] {
		sid = SubID(1 + s.choose(len(s.m.boxes[id].subs)))
	}
	s.attach(id, sid)
}

func (s *sim) attach(id BoxID, sid SubID) *simReader {
	r := &simReader{box: id, sub: sid, credit: 1 + s.choose(8), woken: true}
	x, err := s.s.Attach(r.box, r.sub, fmt.Sprint("reader", len(s.readers)), s.choose(2), r.credit)
	if err != nil {
		s.failf("attach: %v", err)
	}
	r.x = x
	s.did("%p of %d/%d attached", r, r.box, r.sub)
	s.readers = append(s.readers, r)
	return r
}

func (s *sim) detach(r *simReader, broke bool) {
	s.readers = slices.DeleteFunc(s.readers, func(x *simReader) bool { return x == r })
	b := s.m.boxes[r.box]
	u := b.subs[r.sub]
	for _, seq := range slices.Sorted(maps.Keys(u.leases)) {
		if l := u.leases[seq]; l.session == r.x && l.state == live {
			if broke {
				s.m.fail(b, u, seq, CauseAbandoned)
			} else {
				l.state = returned
			}
		}
	}
	var out Output
	s.s.Detach(s.now, r.x, broke, &out)
	s.did("%p of %d/%d detached, broke %v", r, r.box, r.sub, broke)
	s.checkDues(&out, nil)
	s.note(&out)
}

// die has a program that has all sessions of a subscription die, and come back at once, some
// times in a row.
func (s *sim) die() {
	if len(s.readers) == 0 {
		return
	}
	r := s.readers[s.choose(len(s.readers))]
	for range 1 + s.choose(3) {
		for _, x := range slices.Clone(s.readers) {
			if x.box == r.box && x.sub == r.sub {
				s.detach(x, true)
			}
		}
		s.commit(len(s.flight))
		for range 1 + s.choose(3) {
			s.deliverTo(s.attach(r.box, r.sub), 1+s.choose(5))
		}
	}
	if n := len(s.handles); n > 0 && s.one(2) { // the newest is cleared, and leased again
		s.settleAll([]Settlement{{Box: s.handles[n-1].Box, Sub: s.handles[n-1].Sub, Handle: s.handles[n-1].Handle, Op: Defer}})
		s.commit(len(s.flight))
		s.deliverTo(s.attach(r.box, r.sub), 5)
	}
}

// restart loses what is in memory and in flight, and begins again from the ledger, or from
// the checkpoint and what came after it.
func (s *sim) restart() {
	var out Output
	again := New(chainNotes{})
	from := 0
	if s.saved != nil && s.one(2) {
		loaded, err := Load(bytes.NewReader(s.saved), chainNotes{})
		if err != nil {
			s.failf("load: %v", err)
		}
		again, from = loaded, s.savedAt
	}
	again.producers.limit = maxSimProducers
	for i, rec := range s.log[from:] {
		if err := again.Apply(Place(from+i+1), rec, &out); err != nil {
			s.failf("replay: %v", err)
		}
	}
	s.same(again, s.s)
	s.s, s.readers, s.flight = again, nil, nil
	s.now.Mono = 10_000 // another start of the machine
	if s.one(2) {
		hours := int64(s.choose(72))
		s.now.Wall += hours * 3600_000 // somebody set the clock
		s.now.Doubted = hours%2 > 0
	}
	s.m.restart()
	s.cleaned = s.now.Mono
	out = Output{}
	s.s.Start(s.now, s.m.boot+1+uint64(s.choose(2)), &out)
	s.note(&out)
	s.commit(len(s.flight))
}

func (s *sim) save(x *State) []byte {
	var w bytes.Buffer
	if err := x.Save(&w); err != nil {
		s.failf("save: %v", err)
	}
	return w.Bytes()
}

func (s *sim) same(a, b *State) {
	if x, y := s.save(a), s.save(b); !bytes.Equal(x, y) {
		s.failf("a replay is another state:\n%x\n%x", x, y)
	}
}
