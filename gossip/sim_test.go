package gossip

import (
	"math/rand/v2"
	"time"

	"github.com/balefire/balefire/proto"
)

// A sim runs cores in virtual time: messages take time, get lost and are cut off; nodes
// pause, die, return and join. Everything is determined by the seed.
type sim struct {
	now   time.Duration
	rand  *rand.Rand
	t     Tuning
	nodes []*simNode
	heap  []*simEvent
	free  []*simEvent
	seq   uint64

	loss  float64
	delay time.Duration // of a message: between 0.5 and 1.5 times this
	cut   func(from, to int) bool
	bad   map[int]float64       // additional loss of single nodes, both ways
	slow  map[int]time.Duration // additional delay of single nodes, both ways

	topic func(from *simNode, a *Action)       // publishes; nil: what is published reaches all others directly
	sent  func(from, to *simNode, e *simEvent) // receives all messages that are not published; may be nil

	events    func(at *simNode, e *Event) // receives all events of all nodes
	messages  uint64                      // probes and replies sent
	accused   int                         // accusations published that state SUSPECT
	sentenced int                         // likewise DEAD
	steps     uint64
}

type simNode struct {
	s      *sim
	i      int
	id     proto.PeerID
	boot   uint64
	core   *Core
	up     bool
	paused bool
	held   []*simEvent
	got    map[proto.PeerID]uint64 // messages received in this life, by sender
	tickAt time.Duration
	state  proto.NodeState
}

// simKind is the kind of a simulated event.
type simKind uint8

const (
	simTick simKind = iota
	simProbe
	simReply
	simRumors
	simRoot
	simAsk
	simAnswer
	simDo // calls do
)

type simEvent struct {
	at      time.Duration
	seq     uint64
	kind    simKind
	missed  bool
	to      *simNode
	boot    uint64 // boot number that to must have; 0: any
	from    *simNode
	number  uint64
	target  proto.PeerID
	root    [32]byte
	updates []*Update
	ask     *Ask
	answer  *Answer
	do      func()
}

func simID(i int) (p proto.PeerID) {
	p[0], p[1], p[30], p[31] = byte(i*37), byte(i>>8), 1, byte(i)
	return p
}

// testTuning returns the parameters that most simulations use.
func testTuning() Tuning {
	return Tuning{
		ProbeInterval: time.Second, ProbeTimeout: 500 * time.Millisecond, SuspectRecover: 5 * time.Second, DeadRecover: 30 * time.Second,
		SyncInterval: 30 * time.Second, PruneAge: 24 * time.Hour, PruneInterval: 10 * time.Minute, PruneLimit: 64, MaxMembers: 4096,
	}
}

// tuned returns the parameters of testTuning with a change.
func tuned(change func(*Tuning)) Tuning {
	t := testTuning()
	change(&t)
	return t
}

func newSim(seed uint64, n int, t Tuning) *sim {
	s := &sim{rand: rand.New(rand.NewPCG(seed, 7)), t: t, delay: 10 * time.Millisecond, bad: map[int]float64{}, slow: map[int]time.Duration{}}
	for range n {
		s.add()
	}
	for _, n := range s.nodes {
		s.start(n)
	}
	return s
}

func (s *sim) add() *simNode {
	n := &simNode{s: s, i: len(s.nodes), id: simID(len(s.nodes)), boot: 1000}
	s.nodes = append(s.nodes, n)
	return n
}

// start starts n: it is connected to all nodes that are up and not cut off.
func (s *sim) start(n *simNode) {
	n.boot++
	n.up, n.paused, n.held, n.state = true, false, nil, proto.NodeRunning
	n.got = map[proto.PeerID]uint64{}
	n.core = NewCore(n.id, n.boot<<20, s.now, s.t, n, n.received, rand.New(rand.NewPCG(s.rand.Uint64(), 1)))
	n.tickAt = never
	for _, o := range s.nodes {
		if o != n && o.core != nil {
			n.core.Introduced(s.now, o.id)
			o.core.Introduced(s.now, n.id)
			if o.up {
				s.connect(n, o, true)
			}
		}
	}
	s.plan(n)
	s.act(n, n.core.Revise(s.now))
}

// connect tells both ends that they can, or cannot, reach each other.
func (s *sim) connect(a, b *simNode, on bool) {
	for _, e := range [][2]*simNode{{a, b}, {b, a}} {
		at, peer := e[0], e[1].id
		s.after(time.Duration(s.rand.Int64N(int64(time.Second))), func() {
			if !at.up || on && s.isCut(a.i, b.i) {
				return
			}
			if on {
				s.act(at, at.core.Connected(s.now, peer))
			} else {
				s.act(at, at.core.Disconnected(s.now, peer))
			}
		})
	}
}

func (s *sim) isCut(a, b int) bool { return s.cut != nil && (s.cut(a, b) || s.cut(b, a)) }

// kill stops n without a message.
func (s *sim) kill(n *simNode) {
	n.up = false
	for _, o := range s.nodes {
		if o.up {
			s.connect(n, o, false)
		}
	}
}

// stop stops n after it has announced that.
func (s *sim) stop(n *simNode) {
	n.state = proto.NodeStopped
	s.act(n, n.core.Revise(s.now))
	s.kill(n)
}

func (s *sim) pause(n *simNode, d time.Duration) {
	if !n.up || n.paused {
		return
	}
	n.paused = true
	life := n.boot
	s.after(d, func() {
		if n.up && n.boot == life {
			s.resume(n)
		}
	})
}

// resume lets n run again: its timers and queued messages are processed in random order.
func (s *sim) resume(n *simNode) {
	n.paused = false
	held := n.held
	n.held = nil
	if s.rand.IntN(2) == 0 {
		s.tick(n)
	}
	for _, e := range held {
		s.deliver(e)
	}
	s.plan(n)
}

// partition cuts the links that f selects, and tells both ends some seconds later. nil
// heals.
func (s *sim) partition(f func(from, to int) bool) {
	was := s.cut
	s.cut = f
	for i, a := range s.nodes {
		for _, b := range s.nodes[i+1:] {
			before := was != nil && (was(a.i, b.i) || was(b.i, a.i))
			if after := s.isCut(a.i, b.i); after != before && a.up && b.up {
				s.after(time.Duration(s.rand.Int64N(int64(5*time.Second))), func() {
					if a.up && b.up && s.isCut(a.i, b.i) == after {
						s.connect(a, b, !after)
					}
				})
			}
		}
	}
}

func (n *simNode) received(p proto.PeerID) uint64 { return n.got[p] }

// Record and Accuse implement Signer without signing.
func (n *simNode) Record(incarnation, revision uint64) *Update {
	return &Update{Peer: n.id, By: n.id, Incarnation: incarnation, Record: &proto.NodeRecord{
		Incarnation: incarnation, Revision: revision, Boot: n.boot, State: n.state,
	}}
}

func (n *simNode) Accuse(p proto.PeerID, incarnation uint64, l proto.Liveness) *Update {
	return &Update{Peer: p, By: n.id, Incarnation: incarnation, Liveness: l}
}

// find returns the node with this id.
func (s *sim) find(p proto.PeerID) *simNode { return s.nodes[int(p[31])+int(p[1])<<8] }

// act performs a core's actions.
func (s *sim) act(n *simNode, actions []Action) {
	for i := range actions {
		switch a := &actions[i]; a.Kind {
		case DoProbe, DoReply:
			s.messages++
			kind := simProbe
			if a.Kind == DoReply {
				kind = simReply
			}
			s.send(n, s.find(a.Peer), simEvent{kind: kind, number: a.Number, target: a.Target, missed: a.Missed, updates: a.Updates}, true)
		case DoPublish:
			for _, u := range a.Updates {
				switch {
				case u.Record == nil && u.Liveness == proto.Suspect:
					s.accused++
				case u.Record == nil:
					s.sentenced++
				}
			}
			if s.topic != nil {
				s.topic(n, a)
				continue
			}
			for _, o := range s.nodes {
				if o != n && o.up {
					s.send(n, o, simEvent{kind: simRumors, updates: a.Updates}, true)
				}
			}
		case DoRoot:
			if s.topic != nil {
				s.topic(n, a)
				continue
			}
			for _, o := range s.nodes {
				if o != n && o.up {
					s.send(n, o, simEvent{kind: simRoot, root: n.core.Root()}, true)
				}
			}
		case DoSync:
			s.send(n, s.find(a.Peer), simEvent{kind: simAsk, ask: n.core.Ask(proto.PeerID{}, nil)}, false)
		case DoEvent:
			if s.events != nil {
				s.events(n, a.Event)
			}
		}
	}
	s.plan(n)
}

// send schedules e to arrive, unless it is lost. What is sent over a stream is delayed
// instead.
func (s *sim) send(from, to *simNode, e simEvent, lossy bool) {
	loss := max(s.loss, s.bad[from.i], s.bad[to.i])
	delay := s.delay/2 + time.Duration(s.rand.Int64N(int64(s.delay))) + s.slow[from.i] + s.slow[to.i]
	if s.cut != nil && s.cut(from.i, to.i) || !to.up || lossy && s.rand.Float64() < loss {
		return
	}
	for !lossy && s.rand.Float64() < loss {
		delay += 200 * time.Millisecond
	}
	if s.sent != nil {
		s.sent(from, to, &e)
	}
	x := s.event()
	*x = e
	x.from, x.to, x.boot = from, to, to.boot
	s.push(x, s.now+delay)
}

func (s *sim) after(d time.Duration, do func()) {
	x := s.event()
	x.kind, x.do = simDo, do
	s.push(x, s.now+d)
}

// plan schedules the next tick of n.
func (s *sim) plan(n *simNode) {
	if next := max(n.core.Next(), s.now); n.up && next < n.tickAt {
		n.tickAt = next
		x := s.event()
		x.kind, x.to, x.boot = simTick, n, n.boot
		s.push(x, next)
	}
}

func (s *sim) tick(n *simNode) { s.act(n, n.core.Tick(s.now)) }

// run runs the simulation for d.
func (s *sim) run(d time.Duration) {
	end := s.now + d
	for len(s.heap) > 0 && s.heap[0].at <= end {
		e := s.pop()
		s.now = e.at
		s.steps++
		switch {
		case e.kind == simDo:
			do := e.do
			s.recycle(e)
			do()
			continue
		case !e.to.up || e.to.boot != e.boot:
		case e.kind == simTick && e.at == e.to.tickAt:
			e.to.tickAt = never
			if e.to.paused {
				break // resume plans the next tick
			}
			if e.to.core.Next() <= s.now {
				s.tick(e.to)
			} else {
				s.plan(e.to)
			}
		case e.kind == simTick:
		case e.to.paused:
			if len(e.to.held) < 2000 {
				e.to.held = append(e.to.held, e)
				continue
			}
		default:
			s.deliver(e)
			continue
		}
		s.recycle(e)
	}
	s.now = end
}

func (s *sim) deliver(e *simEvent) {
	n, from := e.to, e.from
	n.got[from.id]++
	if late := s.slow[n.i] + s.slow[from.i]; late > 0 {
		s.after(late, func() { from.got[n.id]++ }) // the acknowledgment
	}
	switch e.kind {
	case simProbe:
		s.act(n, n.core.Probe(s.now, from.id, e.number, e.target, e.updates))
	case simReply:
		s.act(n, n.core.Reply(s.now, from.id, e.number, e.target, e.missed, e.updates))
	case simRumors:
		s.act(n, n.core.Updates(s.now, from.id, e.updates))
	case simRoot:
		s.act(n, n.core.RootReceived(s.now, from.id, n.core.Root() == e.root))
	case simAsk:
		ans, actions := n.core.Answer(s.now, from.id, e.ask)
		s.send(n, from, simEvent{kind: simAnswer, ask: e.ask, answer: ans}, false)
		s.act(n, actions)
	case simAnswer:
		next, actions := n.core.Answered(s.now, from.id, e.ask, e.answer)
		if next != nil {
			s.send(n, from, simEvent{kind: simAsk, ask: next}, false)
		}
		s.act(n, actions)
	}
	s.recycle(e)
}

// agree reports whether every node that is up assigns f(n) to each other node n.
func (s *sim) agree(f func(n *simNode) Status) bool {
	for _, at := range s.nodes {
		if !at.up {
			continue
		}
		for _, n := range s.nodes {
			if n == at {
				continue
			}
			m := at.core.members[n.id]
			if m == nil || m.status != f(n) {
				return false
			}
		}
	}
	return true
}

// actualStatus returns Alive for a node that is up, and otherwise Dead.
func actualStatus(n *simNode) Status {
	if n.up {
		return Alive
	}
	return Dead
}

// until runs until ok, which it checks often, or limit, and returns the time that took.
func (s *sim) until(limit time.Duration, ok func() bool) time.Duration {
	start := s.now
	for s.now-start < limit && !ok() {
		s.run(50 * time.Millisecond)
	}
	return s.now - start
}

// equal reports whether all nodes that are up have the same root.
func (s *sim) equal() bool {
	var root *[32]byte
	for _, n := range s.nodes {
		if !n.up {
			continue
		}
		if r := n.core.Root(); root == nil {
			root = &r
		} else if *root != r {
			return false
		}
	}
	return true
}

func (s *sim) counts() (all Counts) {
	for _, n := range s.nodes {
		if n.core != nil {
			all.add(n.core.counts)
		}
	}
	return all
}

func (c *Counts) add(o Counts) {
	c.Probes += o.Probes
	c.Helped += o.Helped
	c.Indirect += o.Indirect
	c.Acks += o.Acks
	c.Misses += o.Misses
	c.Slow += o.Slow
	c.Postponed += o.Postponed
	c.Suspicions += o.Suspicions
	c.Confirmations += o.Confirmations
	c.Verdicts += o.Verdicts
	c.Refutations += o.Refutations
	c.OwnRefutations += o.OwnRefutations
	c.Returns += o.Returns
	c.Suppressed += o.Suppressed
	c.Pruned += o.Pruned
	c.StaleDead += o.StaleDead
	c.Pauses += o.Pauses
	c.Throttled += o.Throttled
	c.Stale += o.Stale
	c.UnknownIncarnation += o.UnknownIncarnation
	c.Refused += o.Refused
}

// The heap of events, by time and then by order of creation.

func (s *sim) event() *simEvent {
	if n := len(s.free); n > 0 {
		e := s.free[n-1]
		s.free = s.free[:n-1]
		return e
	}
	return new(simEvent)
}

func (s *sim) recycle(e *simEvent) {
	*e = simEvent{}
	s.free = append(s.free, e)
}

func (a *simEvent) before(b *simEvent) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (s *sim) push(e *simEvent, at time.Duration) {
	s.seq++
	e.at, e.seq = at, s.seq
	s.heap = append(s.heap, e)
	for i := len(s.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if s.heap[up].before(s.heap[i]) {
			break
		}
		s.heap[up], s.heap[i] = s.heap[i], s.heap[up]
		i = up
	}
}

func (s *sim) pop() *simEvent {
	top := s.heap[0]
	last := len(s.heap) - 1
	s.heap[0] = s.heap[last]
	s.heap = s.heap[:last]
	for i := 0; ; {
		low := 2*i + 1
		if low >= last {
			break
		}
		if low+1 < last && s.heap[low+1].before(s.heap[low]) {
			low++
		}
		if s.heap[i].before(s.heap[low]) {
			break
		}
		s.heap[i], s.heap[low] = s.heap[low], s.heap[i]
		i = low
	}
	return top
}
