package mail

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	pb "google.golang.org/protobuf/proto"
)

// The simulator has two origins and a home, each a broker with a log in memory, and a network
// that loses, repeats, reorders and is cut. It takes every step of the brokers itself: a run is
// a function of its seed.
type sim struct {
	ctx    context.Context
	ended  context.Context // with it nobody waits for a broker, which takes no step meanwhile
	rng    *rand.Rand
	clock  *clock.Manual
	nodes  [3]*simNode // the last one is the home
	net    []simBundle
	back   []simAnswer
	mails  []*simMail
	denied map[proto.MailID]bool
	counts map[string]int
	failed string

	putsBack bool // disks are put back
	reads    bool // agent:slow is read
	lossless bool // nothing was relaxed, and no disk was put back
}

// A simNode is a broker with its disk.
type simNode struct {
	*Broker
	s       *sim
	id      proto.PeerID
	boot    uint64
	link    int // bundles and answers of an earlier connection are lost
	log     *simLog
	copies  []*simLog
	calls   []*simCall
	comes   []simArrival
	mu      sync.Mutex
	bounced map[proto.MailID]bool
}

// A simMail is the truth about one mail.
type simMail struct {
	id      proto.MailID
	origin  int
	lane    string // box and key, or class
	promise bool   // its sender was told that it is on disk
}

type simCall struct {
	f     *forwarding
	mails []*simMail
}

type simBundle struct {
	from, link int
	m          *proto.Bundle
}

type simArrival struct {
	simBundle
	a *Arrival
}

type simAnswer struct {
	to, link int
	m        *proto.Bundled
}

// simBoxes are the boxes of the home. The last one is read seldom: what it has is moved.
var simBoxes = []string{"agent:a", "agent:b", "agent:slow"}

func simulate(seed uint64, steps int) *sim {
	s := &sim{
		ctx: context.Background(), ended: endedContext(), rng: rand.New(rand.NewPCG(seed, 11)), clock: clock.NewManual(time.UnixMilli(1 << 40)), denied: map[proto.MailID]bool{},
		counts: map[string]int{}, putsBack: seed%4 == 3, lossless: seed%4 < 2,
	}
	for i := range s.nodes {
		n := &simNode{s: s, id: proto.PeerID{byte(i + 1)}, log: &simLog{rng: s.rng}, bounced: map[proto.MailID]bool{}}
		s.nodes[i] = n
		n.start()
		for k, name := range simBoxes {
			settings := box.BoxSettings{Name: box.SpoolPrefix + name, Kind: box.Spool, Home: proto.PeerID{3}, Generation: 1, Mails: 60}
			if i == 2 {
				settings = box.BoxSettings{Name: name, Kind: box.Mailbox, Generation: 1, Mails: 12 + 28*uint32(k/2)}
			}
			n.queue(box.EncodeBox(box.BoxID(k+1), &settings), false, false, func(box.Result, error) { n.publish() })
			n.flush()
		}
		n.work()
	}
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

// endedContext returns a context that is done.
func endedContext() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}

func (s *sim) fail(format string, args ...any) {
	if s.failed == "" {
		s.failed = fmt.Sprintf(format, args...)
	}
}

func (s *sim) one(n int) bool { return s.rng.IntN(n) == 0 }

func (s *sim) origin() *simNode { return s.nodes[s.rng.IntN(2)] }
func (s *sim) home() *simNode   { return s.nodes[2] }

// start starts a node from its disk.
func (n *simNode) start() {
	s := n.s
	n.boot++
	n.link++
	n.calls, n.comes = nil, nil
	b := newBroker(n.log, Config{
		Boot: n.boot, Self: n.id, Clock: s.clock.Clock(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), random: s.rng.Uint64,
		CheckpointRecords: 40, CheckpointBytes: 1 << 60, CheckpointEvery: 1 << 60,
		Bounced: func(_ context.Context, x Bounce) {
			l, err := proto.ParseLetter(x.Letter)
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.bounced[l.BounceOf] = true; err != nil {
				s.fail("a bounce: %v", err)
			}
		},
	})
	n.Broker = b
	b.state = box.New(&b.chains)
	from := 0
	if at := len(n.log.images); at > 0 {
		var err error
		from = n.log.images[at-1].index
		if b.state, err = box.Load(bytes.NewReader(n.log.images[at-1].state), &b.chains); err != nil {
			s.fail("%v", err)
			b.state = box.New(&b.chains)
		}
	}
	for i, rec := range n.log.recs[from:] {
		p := placeOf(from+i+1, rec)
		if n.log.released[p.Segment] {
			s.fail("record %d of a start was released", from+i+1)
		}
		if err := b.replay(p, rec); err != nil {
			s.fail("replay: %v", err)
		}
	}
	b.last.Store(uint64(len(n.log.recs)))
	if err := b.loaded(); err != nil {
		s.fail("start: %v", err)
	}
	for t := range b.spools.all() {
		if len(t.unreadable) > 0 {
			s.fail("mails %v of a spool of node %d cannot be read", t.unreadable, n.id[0])
		}
	}
	b.begin(s.ctx)
	n.work()
	n.checkRecords()
}

// checkRecords checks that each record that is needed can be read.
func (n *simNode) checkRecords() {
	for _, k := range n.state.Places(box.Cursor{}) {
		if _, _, err := n.mailAt(k.Place, k.Length); err != nil {
			n.s.fail("mail %d of box %d of node %d: %v", k.Seq, k.Box, n.id[0], err)
		}
	}
}

// step takes a step of the broker and hears its answers.
func (n *simNode) step() {
	n.Broker.step(n.s.ctx)
	n.waiting.Wait()
	n.calls = slices.DeleteFunc(n.calls, func(c *simCall) bool {
		select {
		case <-c.f.done:
		default:
			return false
		}
		for i, r := range c.f.sent {
			c.mails[i].promise = r.Code == proto.CodeOK && !r.Duplicate
			n.s.counts["sent: "+r.Code.Name()]++
		}
		return true
	})
	n.comes = slices.DeleteFunc(n.comes, func(c simArrival) bool {
		select {
		case <-c.a.done:
		default:
			return false
		}
		if c.a.err != nil {
			n.s.fail("take: %v", c.a.err)
			return true
		}
		if err := c.a.answer.Check(); err != nil {
			n.s.fail("%v: %v", c.a.answer, err)
		}
		if _, ends := c.a.answer.Code.Ends(); ends {
			n.s.fail("a chain is stopped with %s", c.a.answer.Code.Name())
		}
		n.s.counts["answered: "+c.a.answer.Code.Name()]++
		n.s.back = append(n.s.back, simAnswer{c.from, c.link, c.a.answer})
		return true
	})
}

// work writes all that is queued and what follows from that.
func (n *simNode) work() {
	for range 4 {
		n.log.write(1<<30, true)
		n.step()
	}
}

// write writes a part of what is queued.
func (n *simNode) write() {
	n.log.full = n.s.one(12)
	n.log.write(1+n.s.rng.IntN(4), true)
	n.log.full = false
	n.step()
}

func (s *sim) step() {
	s.clock.Advance(time.Duration(s.rng.IntN(400)) * time.Millisecond)
	switch k := s.rng.IntN(100); {
	case k < 16:
		s.create(s.origin())
	case k < 28:
		s.origin().write()
	case k < 44:
		s.send(s.origin(), s.rng.IntN(3000))
	case k < 58:
		s.deliver()
	case k < 68:
		s.home().write()
	case k < 82:
		s.hear()
	case k < 86:
		s.read()
	case k < 91:
		n := s.nodes[s.rng.IntN(3)]
		n.tick(s.ctx)
		n.step()
	case k < 93:
		s.reconnect(s.origin())
	case k < 94:
		s.cancel(s.origin())
	case k < 95 && s.one(3):
		s.clock.Advance(time.Duration(s.rng.IntN(10)) * time.Minute)
	case k < 97:
		s.nodes[s.rng.IntN(3)].checkpoint()
	default:
		s.crash(s.nodes[s.rng.IntN(3)])
	}
}

func (s *sim) create(n *simNode) {
	c := new(simCall)
	var out []Outgoing
	now := s.clock.Clock().Now()
	relaxed := !s.lossless && s.one(5)
	for range 1 + s.rng.IntN(4) {
		id := proto.MailID{1, 14: byte(len(s.mails) >> 8), 15: byte(len(s.mails))}
		l := proto.Letter{
			Class: proto.Critical + proto.Class(s.rng.IntN(4)), ID: id, Created: now.UnixMilli(), NotAfter: now.Add(time.Duration(1+s.rng.IntN(30)) * time.Minute).UnixMilli(),
			Sender: []byte("x"), Body: bytes.Repeat([]byte{'x'}, s.rng.IntN(1000)),
		}
		m := &simMail{id: id, lane: l.Class.Name()}
		if s.one(3) {
			l.Key = []byte{byte('k' + s.rng.IntN(3))}
			m.lane = string(l.Key)
		}
		name := simBoxes[s.rng.IntN(len(simBoxes))]
		m.lane += " " + name
		if m.origin = int(n.id[0]) - 1; s.one(10) {
			s.denied[id] = true
		}
		letter, err := proto.AppendLetter(nil, &l)
		if err != nil {
			s.fail("%v", err)
			return
		}
		s.mails, c.mails = append(s.mails, m), append(c.mails, m)
		out = append(out, Outgoing{Box: name, Home: s.home().id, Generation: 1, Letter: letter})
	}
	var err error
	if c.f, err = n.forwardable(s.ctx, out, relaxed); err != nil {
		s.fail("%v", err)
		return
	}
	n.do(func(box.Now) { n.forward(c.f) })
	n.calls = append(n.calls, c)
	n.step()
}

// send sends what a lane has next.
func (s *sim) send(n *simNode, room int) bool {
	l := n.lane(s.home().id)
	x := l.take(room)
	if x == nil {
		return false
	}
	m, err := l.fetch(s.ended, x)
	if err != nil {
		s.fail("fetch: %v", err)
		return false
	}
	if len(m.Letters) > room && len(x.Refs) > 1 {
		s.fail("%d bytes in a bundle, room for %d", len(m.Letters), room)
	}
	if !s.one(8) {
		s.net = append(s.net, simBundle{int(n.id[0]) - 1, n.link, m})
	}
	return true
}

func (s *sim) admit(_ string, l *proto.Letter) (proto.Code, string) {
	switch {
	case s.denied[l.ID]:
		return proto.CodeDenied, "not allowed"
	case s.one(60):
		return proto.CodeDraining, "later"
	}
	return proto.CodeOK, ""
}

// deliver brings a bundle, any, to the home; sometimes a copy comes again later.
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
	h := s.home()
	a, err := h.Arrive(s.nodes[x.from].id, pb.Clone(x.m).(*proto.Bundle), s.admit)
	if err != nil {
		s.fail("arrive: %v", err)
		return
	}
	h.comes = append(h.comes, simArrival{x, a})
	h.step()
}

// hear brings an answer, any, to its origin.
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
	n := s.nodes[x.to]
	if x.link != n.link || s.one(8) {
		return
	}
	if err := n.lane(s.home().id).answer(n.now(), x.m); err != nil {
		s.fail("answer: %v", err)
	}
	n.step()
}

// read acknowledges some of what the home has.
func (s *sim) read() {
	h := s.home()
	name := simBoxes[s.rng.IntN(len(simBoxes))]
	if name == "agent:slow" && !s.reads {
		return
	}
	id, _ := h.state.Find(name)
	for i := range h.state.Mails(id, 0, 0) {
		h.Broker.queue(box.EncodeSpoolDone(id, []uint64{i.Seq}), false, false, nil) // an ACK, as of a reader
		if s.one(4) || name == "agent:slow" {
			break
		}
	}
	h.step()
}

func (s *sim) reconnect(n *simNode) {
	n.link++
	n.lane(s.home().id).again(n.spools.origin.Reset)
	n.step()
}

func (s *sim) cancel(n *simNode) {
	name := simBoxes[s.rng.IntN(len(simBoxes))]
	held := n.spools.origin.HoldUnsent(name, 1+s.rng.IntN(3))
	n.endSpooled(n.spools.targets[name], held, box.SpoolEnd{State: box.Cancelled, Cause: box.CausePurged}, nil)
	n.step()
}

// checkpoint writes the state, if nothing is on its way. What was written before is on disk then.
func (n *simNode) checkpoint() {
	n.step()
	if n.queued.len() == 0 {
		n.saved.records += 1 << 40
		n.checkpointDue(n.s.ctx)
		n.waiting.Wait()
		n.step()
	}
	n.checkRecords()
	if n.s.putsBack && len(n.copies) < 4 {
		n.copies = append(n.copies, n.log.clone())
	}
}

// crash kills a node, or cuts its power, or puts an old copy of its disk back.
func (s *sim) crash(n *simNode) {
	s.counts["crashes"]++
	n.log.kill(s.one(2))
	if len(n.copies) > 0 && s.one(4) {
		s.counts["disks put back"]++
		n.log = n.copies[s.rng.IntN(len(n.copies))].clone()
	}
	if n == s.home() {
		for _, o := range s.nodes[:2] {
			s.reconnect(o)
		}
	}
	n.start()
}

// drain ends all faults and gives all the time that they need.
func (s *sim) drain() {
	s.net, s.back = nil, nil
	for range 20 {
		s.round()
	}
	for _, n := range s.nodes {
		n.checkSpace()
	}
	s.reads = true
	for range 50 {
		s.round()
	}
	for i, n := range s.nodes[:2] {
		for t := range n.spools.all() {
			if left := n.waitingIn(t); left > 0 {
				s.fail("%d mails of node %d for %s are stuck: %+v", left, i, t.box, t.chains)
			}
		}
	}
}

// checkSpace checks that some checkpoints later a quarter of each segment is needed, besides
// those that a start reads.
func (n *simNode) checkSpace() {
	wall := n.s.clock.Clock().Now()
	for range 4 {
		for range simSegment { // without news no checkpoint is due
			n.queue(box.EncodeSpoolDone(box.MaxBoxes+1, []uint64{1}), false, false, nil)
		}
		n.flush()
		n.work()
		n.checkpoint()
		for range 20 {
			n.s.clock.Advance(time.Second)
			n.s.clock.SetWall(wall) // nothing expires meanwhile
			n.work()
		}
	}
	n.s.counts["moved"] += int(n.space.moved.Load())
	needed := n.neededBytes()
	for first, size := range n.log.segments() {
		if int(first)+2*simSegment <= n.log.images[0].index && needed[first] < size/sparsePart {
			n.s.fail("of segment %d of node %d %d bytes of %d are needed", first, n.id[0], needed[first], size)
		}
	}
}

// round gives all a second without faults, and brings what is on its way.
func (s *sim) round() {
	if s.failed != "" {
		return
	}
	s.clock.Advance(time.Second)
	for _, n := range s.nodes {
		n.tick(s.ctx)
		n.work()
	}
	for _, n := range s.nodes[:2] {
		s.reconnect(n)
		for s.send(n, 5000) {
		}
	}
	for len(s.net) > 0 {
		s.deliver()
		s.home().work()
	}
	for len(s.back) > 0 {
		s.hear()
	}
	for range 8 {
		s.read()
		s.home().work()
	}
	for _, n := range s.nodes[:2] {
		n.work()
	}
}

// replayed applies all records of a log to a new state, and returns the mails that it took and
// how they ended.
func (s *sim) replayed(l *simLog) (taken []proto.MailID, ends map[proto.MailID]box.End) {
	var chains Chains
	state, ends := box.New(&chains), map[proto.MailID]box.End{}
	var out box.Output
	for i, rec := range l.recs {
		out.Reset()
		at := placeOf(i+1, rec)
		if err := state.Apply(pack(at), rec, &out); err != nil {
			s.fail("replay: %v", err)
		}
		if m, err := box.ParseMail(rec); err == nil && out.Results[0].Code == proto.CodeOK && !out.Results[0].Duplicate {
			taken = append(taken, letterID(m.Letter))
		}
		for _, e := range out.Ends {
			m, err := box.MailOf(l.recs[e.Place&(1<<offsetBits-1)-1])
			if err != nil {
				s.fail("%v", err)
			}
			ends[letterID(m.Letter)] = e
		}
	}
	return taken, ends
}

func letterID(b []byte) proto.MailID {
	l, _ := proto.ParseLetter(b)
	return l.ID
}

// check looks at the end of every mail.
func (s *sim) check() {
	order, _ := s.replayed(s.home().log)
	times, position := map[proto.MailID]int{}, map[proto.MailID]int{}
	for i, id := range order {
		times[id]++
		position[id] = i
	}
	var spooled [2]map[proto.MailID]bool
	var ends [2]map[proto.MailID]box.End
	for i, n := range s.nodes[:2] {
		var taken []proto.MailID
		taken, ends[i] = s.replayed(n.log)
		spooled[i] = map[proto.MailID]bool{}
		for _, id := range taken {
			spooled[i][id] = true
		}
	}
	last := map[string]int{}
	for i, m := range s.mails {
		n := times[m.id]
		if n > 1 {
			s.fail("mail %d was taken %d times", i, n)
		}
		if !spooled[m.origin][m.id] {
			if m.promise && s.lossless {
				s.fail("mail %d was promised and is lost", i)
			}
			if n > 0 && s.lossless {
				s.fail("mail %d was never in a spool, and was taken", i)
			}
			continue
		}
		e, ended := ends[m.origin][m.id]
		s.counts["ended: "+e.State.String()+" "+e.Cause.String()]++
		bounced := s.nodes[m.origin].bounced[m.id]
		switch {
		case !ended:
			s.fail("mail %d has no end", i)
		case n > 0 && s.denied[m.id]:
			s.fail("mail %d was denied and taken", i)
		case s.putsBack:
		case e.State == box.Done && n != 1:
			s.fail("mail %d is DONE and was taken %d times", i, n)
		case e.State != box.Done && !bounced:
			s.fail("mail %d is %s, and its sender does not know", i, e.State)
		case e.State == box.Expired && e.Cause == box.CauseRefused: // so late that the home may have forgotten it
		case e.State != box.Done && e.Cause != box.CauseUnheard && n > 0 && s.lossless:
			s.fail("mail %d is %s by %s, and was taken", i, e.State, e.Cause)
		case e.State == box.Dead && !s.denied[m.id]:
			s.fail("mail %d is DEAD: %s", i, e.Reason)
		}
		if n == 0 || s.putsBack {
			continue
		}
		lane := strconv.Itoa(m.origin) + m.lane
		if before, ok := last[lane]; ok && position[m.id] < before {
			s.fail("mail %d (%s) was taken before one that was sent earlier", i, m.lane)
		}
		last[lane] = position[m.id]
	}
}

const simSteps = 400

// TestSpools checks I21 and I22 between brokers.
func TestSpools(t *testing.T) {
	runs := uint64(60)
	if os.Getenv("BALEFIRE_LONG") != "" {
		runs = 3000
	}
	all := map[string]int{}
	for seed := range runs {
		s := simulate(seed, simSteps)
		for k, v := range s.counts {
			all[k] += v
		}
		if s.failed != "" {
			t.Errorf("seed %d: %s", seed, s.failed)
		}
	}
	for _, what := range []string{
		"sent: FULL", "answered: OK", "answered: BUSY", "answered: FULL", "answered: DRAINING", "crashes", "disks put back", "moved",
		"ended: DONE ", "ended: DEAD refused", "ended: EXPIRED expired", "ended: EXPIRED unheard", "ended: CANCELLED purged",
	} {
		if all[what] == 0 {
			t.Errorf("in %d runs %q never happened: %v", runs, what, all)
		}
	}
	t.Logf("counted: %d runs: %v", runs, all)
}
