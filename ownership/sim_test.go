package ownership

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// The simulator runs whole nodes, their disks and the network between them in virtual time,
// from one seed. A run is a function of its seed: a failing seed fails again.

// A sim is one run.
type sim struct {
	rng    *rand.Rand
	now    time.Duration // true time
	events simEvents
	seq    int64
	nodes  []*simNode
	faults bool
	group  []int
	cut    [][]bool // in one direction
	w      *checker
	cfg    Config
	copies []simCopy // of grants, which the network may deliver again
	msgs   int
	syncs  int
}

type simCopy struct {
	at       time.Duration
	from, to *simNode
	m        Send
}

type simEvent struct {
	at  time.Duration
	seq int64
	fn  func()
}

func (a *simEvent) before(b *simEvent) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// simEvents is a heap of future events, the earliest first.
type simEvents []simEvent

func (q *simEvents) push(e simEvent) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].before(&h[i]) {
			return
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

func (q *simEvents) pop() simEvent {
	h := *q
	top, last := h[0], len(h)-1
	h[0], h[last] = h[last], simEvent{}
	h = h[:last]
	*q = h
	for i := 0; ; {
		low := 2*i + 1
		if low+1 < last && h[low+1].before(&h[low]) {
			low++
		}
		if low >= last || h[i].before(&h[low]) {
			return top
		}
		h[i], h[low] = h[low], h[i]
		i = low
	}
}

// A simBatch is the output of one input that is not on disk yet.
type simBatch struct {
	out    Output
	grants []simGrant
	tasks  []simRecord // records of tasks that arrived with it
	then   func()
}

type simRecord struct {
	id   proto.TaskID
	kind byte // 'a' accepted from its origin, 'h' handed over, 'd' deleted
}

type simGrant struct {
	task  proto.TaskID
	epoch proto.Seq
	owner proto.PeerID
	token Token
	call  time.Duration
}

// A simProc is a running handler.
type simProc struct {
	task proto.TaskID
	end  byte // 's' success, 'n' failed for good, 'f' retry, 'h' hangs
	dead bool
}

// A simNode is one machine.
type simNode struct {
	s     *sim
	i     int
	peer  proto.PeerID
	up    bool
	inc   int // counts starts and crashes
	home  *Home
	owner *Owner
	simDisk
	simClock
	simWork
	bootID  proto.BootID
	began   time.Duration  // Mono of the start of home
	known   []proto.BootID // of the others, as last reported
	reports []simReport
	downFor []time.Duration
}

// A simReport is what the home knows about another node.
type simReport struct {
	alive bool
	boot  proto.BootID
}

// A simDisk keeps what was synced.
type simDisk struct {
	disk    map[string][]byte
	queue   []*simBatch
	syncing int  // batches at the head of queue that the running fsync covers
	doomed  bool // the node dies during its next fsync
	arrived int64
	simHistory
}

// A simClock runs at its own rate, may jump and may stop.
type simClock struct {
	rate     float64
	skew     time.Duration
	slept    time.Duration // total suspended time
	paused   bool
	pausedAt time.Duration
	suspends bool
	resumed  bool // since the last scan
	isolated bool // it believes that it is suspect
	pending  []func()
}

// A simWork drives the handlers.
type simWork struct {
	procs   map[proto.TaskID]*simProc
	waiting []proto.TaskID
	asking  []proto.TaskID
}

const simSlots = 1

func peerOf(i int) (p proto.PeerID) { p[0], p[31] = byte(i+1), 0xaa; return p }

func (s *sim) nodeOf(p proto.PeerID) *simNode {
	if i := int(p[0]) - 1; i >= 0 && i < len(s.nodes) {
		return s.nodes[i]
	}
	return nil
}

func newSim(seed uint64) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
	s.cfg = Config{
		Lease: 8 * time.Second, Heartbeat: 2 * time.Second, Scan: 3 * time.Second, Margin: time.Second, MaxBackoff: 5 * time.Second,
		RunLimit: 30 * time.Second, Skew: 20 * time.Second, StallAfter: 6 * time.Second, HandoffWindow: 4, MessageLifetime: 60 * time.Second,
		Ahead: 10 * time.Second,
	}
	s.cfg.Random = func(b []byte) {
		for i := range b {
			b[i] = byte(s.rng.Uint32())
		}
	}
	const n = 7
	s.w = newChecker(s)
	s.group, s.cut = make([]int, n), make([][]bool, n)
	for i := range n {
		s.cut[i] = make([]bool, n)
		x := &simNode{s: s, i: i, peer: peerOf(i), known: make([]proto.BootID, n), downFor: make([]time.Duration, n)}
		x.disk, x.rate = map[string][]byte{}, 1
		switch s.rng.IntN(6) {
		case 0:
			x.rate = 0.5
		case 1:
			x.rate = 2
		}
		s.nodes = append(s.nodes, x)
	}
	for _, x := range s.nodes {
		x.start()
	}
	for i, name := range simQueues {
		s.createQueue(s.nodes[i], name)
	}
	return s
}

// createQueue creates a queue that all nodes learn of.
func (s *sim) createQueue(x *simNode, name string) {
	x.apply(x.home.SetQueue(func(*proto.QueueState) {}, x.clock(), name))
	for _, y := range s.nodes {
		if y != x {
			_, out := y.home.Learn(x.home.Queue(name), y.clock())
			y.apply(out)
		}
	}
}

func (s *sim) at(d time.Duration, fn func()) {
	s.seq++
	s.events.push(simEvent{s.now + max(d, 0), s.seq, fn})
}

func (s *sim) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(s.rng.Int64N(int64(hi-lo)))
}

// chance is true once in n.
func (s *sim) chance(n int) bool { return s.rng.IntN(n) == 0 }

func (s *sim) run(until time.Duration, done func() bool) {
	for len(s.events) > 0 && s.events[0].at <= until && s.w.failed == "" {
		e := s.events.pop()
		s.now = e.at
		e.fn()
		if done != nil && s.seq%64 == 0 && done() {
			return
		}
	}
}

func (x *simNode) scaled(d time.Duration) time.Duration { return time.Duration(float64(d) * x.rate) }

// clock reads the clocks of x.
func (x *simNode) clock() Now {
	slept := x.slept
	boot := x.scaled(x.s.now)
	return Now{Wall: (simEpoch + boot + x.skew).Milliseconds(), Mono: boot - x.scaled(slept), Boot: boot}
}

const simEpoch = 1_700_000_000 * time.Second

// on runs fn on x, later if x is paused, and not if it crashes before.
func (x *simNode) on(inc int, fn func()) {
	switch {
	case !x.up || x.inc != inc:
	case x.paused:
		x.pending = append(x.pending, func() { x.on(inc, fn) })
	default:
		fn()
	}
}

// after runs fn on x after d of its own clock.
func (x *simNode) after(d time.Duration, fn func()) {
	inc := x.inc
	x.s.at(time.Duration(float64(d)/x.rate), func() { x.on(inc, fn) })
}

// start starts x with what is on its disk.
func (x *simNode) start() {
	s := x.s
	x.up, x.paused, x.doomed = true, false, false
	x.inc++
	x.queue, x.syncing, x.pending, x.procs, x.waiting, x.asking = nil, 0, nil, map[proto.TaskID]*simProc{}, nil, nil
	x.resumed, x.isolated = false, false
	now := x.clock()
	boot := x.bootNumber(now)
	x.disk["boot"] = binary.BigEndian.AppendUint64(nil, boot)
	s.cfg.Random(x.bootID[:])
	cfg := s.cfg
	cfg.Deeds = simDeeds{x}
	x.home, x.owner = NewHome(x.peer, boot, cfg), NewOwner(x.bootID, cfg)
	leases := map[proto.TaskID]*proto.Lease{}
	for _, k := range slices.Sorted(mapsKeys(x.disk)) {
		if k == "boot" || k[0] == 'r' {
			continue
		}
		m, err := x.home.Load(k, x.disk[k])
		if err == nil {
			err = x.owner.Load(k, x.disk[k])
		}
		if err != nil {
			s.w.fail("node %d: record %q: %v", x.i, k, err)
		}
		if m != nil {
			leases[proto.TaskID(m.Task)] = m
		}
	}
	type rec struct {
		seq uint64
		id  proto.TaskID
	}
	var recs []rec
	for k, v := range x.disk {
		if k[0] == 'r' {
			recs = append(recs, rec{binary.BigEndian.Uint64(v), proto.TaskID([]byte(k[1:]))})
		}
	}
	slices.SortFunc(recs, func(a, b rec) int { return int(a.seq) - int(b.seq) })
	for _, r := range recs {
		x.arrived = max(x.arrived, int64(r.seq))
		x.home.Restore(s.w.tasks[r.id].Task, leases[r.id], now)
	}
	x.began, x.reports = now.Mono, make([]simReport, len(s.group))
	for i, o := range s.nodes {
		x.known[i] = o.bootID
	}
	x.apply(x.home.Begin(now))
	s.w.cutOff(x)
	x.apply(x.owner.Begin(s.w.policyOf, now))
	x.look()
	x.tick(0)
}

func mapsKeys(m map[string][]byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (x *simNode) tick(n int) {
	x.s.w.pump(x)
	x.doubt()
	out := x.home.Tick(x.clock())
	x.s.w.idles(x)
	x.apply(out)
	if x.home.lastScan.Mono == x.clock().Mono {
		x.resumed = false
	}
	x.apply(x.owner.Tick(x.clock()))
	x.work()
	if n%3 == 2 {
		x.look()
		x.gossip()
	}
	x.after(time.Second, func() { x.tick(n + 1) })
}

// doubt makes x believe at times that it is suspect, whatever nodes it reaches (I16).
func (x *simNode) doubt() {
	cut := x.s.faults && (int(x.s.now/(10*time.Second))+3*x.i)%7 == 0
	if cut == x.isolated {
		return
	}
	if x.isolated = cut; cut {
		x.s.w.count("isolated")
	}
	x.apply(x.home.SetActive(!cut, x.clock()))
}

// look updates what the home of x knows about the others.
func (x *simNode) look() {
	for i, o := range x.s.nodes {
		seen := o.up && !o.paused && x.s.linked(x.i, i) && x.s.linked(i, x.i)
		if seen {
			x.known[i], x.downFor[i] = o.bootID, 0
		} else if x.downFor[i] == 0 {
			x.downFor[i] = x.s.now
		}
		dead := !seen && x.s.now-x.downFor[i] > 6*time.Second
		report := simReport{alive: seen || !dead && i != x.i}
		if x.s.seedBit(i) {
			report.boot = x.known[i]
		}
		if x.reports[i] != report {
			x.reports[i] = report
			m := dispatch.Member{Peer: o.peer, Alive: report.alive, Kinds: []string{"k"}, Slots: simSlots, Labels: []string{"any", fmt.Sprintf("n%d", i%5)}}
			x.apply(x.home.SetNode(Node{Member: m, BootID: report.boot}, x.clock()))
		}
		if dead && x.s.chance(3) {
			x.apply(x.home.Dead(o.peer, x.clock()))
		}
	}
}

// seedBit makes some nodes known with their boot id and others without.
func (s *sim) seedBit(i int) bool { return i%2 == 0 }

// gossip sends another node what x knows about the queues and the mailbox.
func (x *simNode) gossip() {
	to := x.s.nodes[x.s.rng.IntN(len(x.s.nodes))]
	for _, name := range simNames {
		if q := x.home.Queue(name); q != nil && to != x {
			x.s.send(x, to.peer, Send{Type: proto.TypeSync, Body: q})
		}
	}
}

var simQueues = []string{"qa", "qb"}

// simTitle is a mailbox, which admins create during the faults, each without having heard
// of the others.
const simTitle = "agent:a"

var simNames = append(slices.Clone(simQueues), simTitle)

// apply sends an output to the disk, and performs it once it is durable.
func (x *simNode) apply(out Output, more ...func(*simBatch)) {
	if len(more) == 0 && out.Empty() {
		return
	}
	b := &simBatch{out: out}
	for _, m := range more {
		m(b)
	}
	if out.Empty() && len(b.tasks) == 0 && b.then == nil {
		return
	}
	s := x.s
	for _, e := range out.Events {
		s.w.event(x, e)
		if ts := x.home.tasks[e.Task]; e.Kind == EventGranted && ts != nil {
			b.grants = append(b.grants, simGrant{e.Task, ts.epoch, ts.owner, ts.token, s.now})
		}
	}
	for _, id := range out.HandedOff {
		b.tasks = append(b.tasks, simRecord{id, 'd'})
	}
	for _, st := range out.Starts {
		if st.Early {
			s.w.count("started early")
			x.startProc(st)
		}
	}
	if len(out.Writes)+len(out.Ends)+len(b.tasks) == 0 && len(x.queue) == 0 {
		x.release(b)
		return
	}
	x.queue = append(x.queue, b)
	x.sync()
}

// sync runs one fsync for all waiting batches.
func (x *simNode) sync() {
	if x.syncing > 0 || len(x.queue) == 0 {
		return
	}
	x.syncing = len(x.queue)
	x.s.syncs++
	inc := x.inc
	if x.doomed {
		x.s.at(x.s.between(0, 10*time.Millisecond), func() {
			if x.doomed && x.inc == inc {
				x.crash()
			}
		})
	}
	x.s.at(x.s.between(time.Millisecond, 15*time.Millisecond), func() {
		if x.inc != inc || !x.up {
			return
		}
		done := x.queue[:x.syncing]
		x.queue, x.syncing = x.queue[x.syncing:], 0
		for _, b := range done {
			x.persist(b)
		}
		x.on(inc, func() {
			for _, b := range done {
				x.release(b)
			}
			x.sync()
		})
	})
}

// persist makes a batch durable.
func (x *simNode) persist(b *simBatch) {
	for _, r := range b.tasks {
		key := "r" + string(r.id[:])
		x.touch(key)
		if r.kind == 'd' {
			delete(x.disk, key)
			continue
		}
		x.arrived++
		x.disk[key] = binary.BigEndian.AppendUint64(nil, uint64(x.arrived))
		if r.kind == 'a' {
			x.s.w.accepted(x, r.id)
		}
	}
	for _, wr := range b.out.Writes {
		x.touch(wr.Key)
		if wr.Val == nil {
			delete(x.disk, wr.Key)
			x.s.w.forgotten(x, wr)
		} else {
			x.disk[wr.Key] = wr.Val
			x.s.w.written(x, wr)
		}
	}
	for _, g := range b.grants {
		x.s.w.granted(x, g)
	}
	for _, e := range b.out.Ends {
		x.s.w.ended(x, e)
	}
}

// release performs what a durable batch allows.
func (x *simNode) release(b *simBatch) {
	for _, m := range b.out.Sends {
		x.s.send(x, m.To, m)
	}
	for _, id := range b.out.Waits {
		x.asking = slices.DeleteFunc(x.asking, func(a proto.TaskID) bool { return a == id })
		if !slices.Contains(x.waiting, id) {
			x.waiting = append(x.waiting, id)
		}
	}
	for _, st := range b.out.Starts {
		if !st.Early {
			x.startProc(st)
		}
	}
	for _, st := range b.out.Stops {
		x.stopProc(st)
	}
	for _, id := range b.out.Probes {
		x.after(50*time.Millisecond, func() {
			unknown := x.s.chance(4)
			done, val := false, []byte(nil)
			if r := x.owner.runs[id]; !unknown && r != nil && r.phase == proto.LeaseStarted {
				done, val = x.s.w.effectOf(x, id)
			}
			x.apply(x.owner.Probed(id, done, unknown, val, x.clock()))
		})
	}
	if b.then != nil {
		b.then()
	}
}

func (s *sim) linked(a, b int) bool { return a == b || s.group[a] == s.group[b] && !s.cut[a][b] }

// send sends a message: it may be lost, duplicated, delayed, or stopped by a cut.
func (s *sim) send(from *simNode, to proto.PeerID, m Send) {
	y := s.nodeOf(to)
	if y == nil {
		return
	}
	s.msgs++
	if out, ok := m.Body.(*proto.Outcome); ok {
		s.w.offered(from, m.Task, out)
	}
	if _, ok := m.Body.(*proto.Grant); ok && s.faults {
		s.copies = append(s.copies, simCopy{s.now, from, y, m})
	}
	copies := 1
	if s.faults && y != from {
		switch s.rng.IntN(10) {
		case 0:
			copies = 0
		case 1:
			copies = 2
		}
	}
	for range copies {
		d := s.between(time.Millisecond, 60*time.Millisecond)
		if s.faults && y != from && s.chance(50) {
			d += s.between(0, 20*time.Second)
			s.w.count("straggler")
		}
		s.at(d, func() {
			if s.linked(from.i, y.i) && y.up {
				y.on(y.inc, func() { y.receive(from.peer, m) })
			}
		})
	}
}
