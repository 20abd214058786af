package gossip

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// Twenty nodes on a LAN: all of them see a join within five seconds and a death within
// ten.
func TestTwentyNodesConverge(t *testing.T) {
	var join, kill, root []time.Duration
	for seed := range uint64(20) {
		s := newSim(seed, 20, testTuning())
		if d := s.until(10*time.Second, func() bool { return s.agree(actualStatus) }); d >= 5*time.Second {
			t.Fatalf("seed %d: twenty nodes found each other in %v", seed, d)
		}
		s.run(time.Duration(seed) * time.Second)
		s.start(s.add())
		d := s.until(10*time.Second, func() bool { return s.agree(actualStatus) })
		join = append(join, d)
		root = append(root, s.until(2*time.Minute, s.equal))
		s.run(time.Minute)
		s.kill(s.nodes[int(seed)%20])
		kill = append(kill, s.until(time.Minute, func() bool { return s.agree(actualStatus) }))
	}
	t.Logf("join: %v; kill: %v; roots equal after %v more", durations(join), durations(kill), durations(root))
	if w := worst(join); w > 5*time.Second {
		t.Errorf("a join took %v", w)
	}
	if w := worst(kill); w > 10*time.Second {
		t.Errorf("a death took %v", w)
	}
}

// A root that differs leads to an exchange with its publisher, by about two of the others. A node
// that finds a second one different begins one with any member: all may find that at once.
func TestDifferentRootLeadsToAnExchange(t *testing.T) {
	const size = 15
	s := newSim(1, size, testTuning())
	s.until(time.Minute, func() bool { return s.agree(actualStatus) && s.equal() })
	due := func(n, o *simNode, same bool) *simNode {
		n.core.syncs.queue = nil
		for _, m := range n.core.members {
			m.synced = 0
		}
		n.core.RootReceived(s.now, o.id, same)
		for _, w := range n.core.syncs.queue {
			return s.find(w.m.id)
		}
		return nil
	}
	const rounds = 100
	first, second := 0, map[*simNode]int{}
	for range rounds {
		for _, n := range s.nodes[2:] {
			if due(n, s.nodes[0], true) != nil {
				t.Fatal("an exchange because of the same root")
			}
			switch due(n, s.nodes[0], false) {
			case nil:
			case s.nodes[0]:
				first++
			default:
				t.Fatal("a different root leads to an exchange with another node")
			}
			with := due(n, s.nodes[1], false)
			if with == nil {
				t.Fatal("no exchange after two different roots")
			}
			second[with]++
		}
	}
	if each := float64(first) / rounds; each < 1.3 || each > 2.6 {
		t.Errorf("one root differs: %.1f of %d nodes begin an exchange", each, size-2)
	}
	for n, all := range second {
		if each := float64(all) / rounds; each > 2 {
			t.Errorf("two roots differ: %.1f of %d nodes begin an exchange with node %d", each, size-2, n.i)
		}
	}
}

// refuteIn is memberlist's formula: each confirmation shortens the time, the first one
// most.
func TestRefutationTimeShrinksWithAccusers(t *testing.T) {
	low, high := 4*time.Second, 24*time.Second
	for _, tt := range []struct {
		n, k int
		want time.Duration
	}{{0, 2, high}, {1, 2, 11381 * time.Millisecond}, {2, 2, low}, {9, 2, low}, {0, 0, low}, {0, 3, high}, {1, 3, 14 * time.Second}, {3, 3, low}} {
		if got := refuteIn(low, high, tt.n, tt.k); (got - tt.want).Abs() > time.Millisecond {
			t.Errorf("%d of %d agree: %v, want %v", tt.n, tt.k, got, tt.want)
		}
	}
	tuning := testTuning()
	for _, tt := range []struct {
		n, k      int
		low, high time.Duration
	}{{2, 0, 4 * time.Second, 4 * time.Second}, {3, 0, 4 * time.Second, 4 * time.Second}, {4, 2, 3 * time.Second, 24 * time.Second}, {5, 2, 3 * time.Second, 24 * time.Second}, {100, 2, 6 * time.Second, 48 * time.Second}} {
		if l, h, k := tuning.suspicion(tt.n); l != tt.low || h != tt.high || k != tt.k {
			t.Errorf("%d nodes: %v to %v, %d must agree", tt.n, l, h, k)
		}
	}
}

// Of a dead node no more is told than what shortens its time to refute: three accusations, and
// the verdicts of those that made them.
func TestThreeAccuse(t *testing.T) {
	for seed := range uint64(10) {
		s := newSim(seed, 15, testTuning())
		s.run(time.Minute)
		accused, sentenced := s.accused, s.sentenced
		s.kill(s.nodes[4])
		s.run(30 * time.Second)
		accused, sentenced = s.accused-accused, s.sentenced-sentenced
		if accused > 3 || sentenced < 1 || sentenced > 3 || !s.agree(actualStatus) {
			t.Errorf("seed %d: %d members accused a dead one and %d published that it is dead, want at most 3, and all know of its death", seed, accused, sentenced)
		}
	}
}

// A node sends one direct probe per interval, regardless of the mesh's size.
func TestProbesDoNotGrowWithTheMesh(t *testing.T) {
	for _, n := range []int{2, 10, 60, 200} {
		s := newSim(1, n, testTuning())
		s.run(10 * time.Second)
		before, sent := s.counts().Probes, s.messages
		s.run(time.Minute)
		probes := float64(s.counts().Probes-before) / float64(n) / 60
		if probes < 0.9 || probes > 1.1 {
			t.Errorf("%d nodes: %.2f probes a node and second", n, probes)
		}
		t.Logf("%d nodes: %.2f probes, %.2f messages a node and second", n, probes, float64(s.messages-sent)/float64(n)/60)
	}
}

// Probes stay together with what else a node does each second, although a timer is always late,
// and after a pause.
func TestProbesKeepTheirMoments(t *testing.T) {
	s := newSim(1, 2, testTuning())
	s.run(10 * time.Second)
	c := s.nodes[0].core
	first := c.probing.due
	for range 100 {
		at := c.probing.due
		c.Tick(at + 3*time.Millisecond)
		if c.probing.due <= at || (c.probing.due-first)%s.t.ProbeInterval != 0 {
			t.Fatalf("a probe at %v is followed by one at %v, the first one was at %v", at, c.probing.due, first)
		}
	}
	late := c.probing.due + 10*time.Second + 300*time.Millisecond
	c.Tick(late)
	if c.probing.due <= late || (c.probing.due-first)%s.t.ProbeInterval != 0 {
		t.Errorf("after a pause until %v a probe is due at %v, the first one was at %v", late, c.probing.due, first)
	}
}

// Two hundred nodes agree on a join, a death and each other's records as fast as twenty
// do, with as many messages per node.
func TestTwoHundredNodesConverge(t *testing.T) {
	const size = 200
	s := newSim(4, size, testTuning())
	first := s.until(time.Minute, func() bool { return s.agree(actualStatus) && s.equal() })
	sent := s.messages
	s.run(time.Minute)
	rate := float64(s.messages-sent) / size / 60
	s.start(s.add())
	join := s.until(time.Minute, func() bool { return s.agree(actualStatus) && s.equal() })
	s.kill(s.nodes[77])
	sent = s.messages
	kill := s.until(time.Minute, func() bool { return s.agree(actualStatus) })
	t.Logf("all know all after %v; then %.1f messages a node and second; a join after %v; a death after %v, %.1f messages a node until then",
		first, rate, join, kill, float64(s.messages-sent)/size)
	if first > 10*time.Second || join > 5*time.Second || kill > 20*time.Second || rate > 3 {
		t.Errorf("slower, or more messages, than twenty nodes")
	}
}

// A busy peer is probed more often, so that its death is detected sooner; the rate for
// the others is unchanged.
func TestBusyPeersAreProbedMoreOften(t *testing.T) {
	var idle, busy []time.Duration
	for seed := range uint64(20) {
		for _, work := range []bool{false, true} {
			s := newSim(seed, 20, testTuning())
			s.run(20 * time.Second)
			victim, home := s.nodes[7], s.nodes[0]
			s.act(home, home.core.Busy(s.now, victim.id, work))
			s.run(10*time.Second + time.Duration(seed)*73*time.Millisecond)
			s.kill(victim)
			d := s.until(time.Minute, func() bool { return home.core.members[victim.id].status == Suspect })
			if work {
				busy = append(busy, d)
			} else {
				idle = append(idle, d)
			}
		}
	}
	t.Logf("suspected by the node with work for it: %v; without work: %v", durations(busy), durations(idle))
	if mean(busy) >= mean(idle) {
		t.Errorf("detection of a busy peer: mean %v, idle %v", mean(busy), mean(idle))
	}
}

// A run is determined by its seed.
func TestSameSeedSameRun(t *testing.T) {
	play := func() (Counts, [32]byte, uint64) {
		s := newSim(9, 9, tuned(func(t *Tuning) { t.PruneAge = 10 * time.Minute }))
		randomFaults(s, time.Hour)
		return s.counts(), s.nodes[0].core.Root(), s.steps
	}
	c1, r1, n1 := play()
	c2, r2, n2 := play()
	if c1 != c2 || r1 != r2 || n1 != n2 {
		t.Errorf("two runs of a seed differ: %d and %d steps, %+v and %+v", n1, n2, c1, c2)
	}
}

// A node that comes back is alive at once for delivery, but gets new work only after a
// while: 5 seconds after a suspicion that this node shares, 30 after it was declared dead. A flap
// restarts the time.
func TestReturningNodesGetNoWorkAtFirst(t *testing.T) {
	s := newSim(1, 3, testTuning())
	s.run(10 * time.Second)
	at, p := s.nodes[0], s.nodes[1]
	m := at.core.members[p.id]
	if !m.eligible(s.now) {
		t.Fatal("a node that was always alive is not eligible")
	}
	record := func() { p.core.own.incarnation++; p.core.own.record = p.Record(p.core.own.incarnation, 1) }
	accuse := func() { at.core.suspect(s.now, m, at.id, nil) }
	accuse()
	if m.status != Suspect || m.eligible(s.now) {
		t.Fatalf("accused: %v", m.status)
	}
	record()
	at.core.Updates(s.now, p.id, []*Update{p.core.own.record})
	if m.status != Alive || m.eligible(s.now) || m.eligible(s.now+4999*time.Millisecond) || !m.eligible(s.now+5*time.Second) {
		t.Errorf("refuted: %v, until %v", m.status, m.eligibleAt-s.now)
	}
	accuse() // within the five seconds
	if c := at.core.counts; c.Suppressed != 1 {
		t.Errorf("a flap was not counted: %+v", c)
	}
	at.core.declareDead(s.now, m, nil)
	record()
	at.core.Updates(s.now, p.id, []*Update{p.core.own.record})
	if m.status != Alive || m.eligible(s.now+29*time.Second) || !m.eligible(s.now+30*time.Second) {
		t.Errorf("back from the dead: %v, until %v", m.status, m.eligibleAt-s.now)
	}
}

// With recovery times of zero a node that comes back gets new work at once.
func TestReturningNodesGetWorkAtOnce(t *testing.T) {
	for _, dead := range []bool{false, true} {
		s := newSim(1, 3, tuned(func(t *Tuning) { t.SuspectRecover, t.DeadRecover = 0, 0 }))
		s.run(10 * time.Second)
		at, p := s.nodes[0], s.nodes[1]
		m := at.core.members[p.id]
		at.core.Updates(s.now, s.nodes[2].id, []*Update{s.nodes[2].Accuse(p.id, m.incarnation, proto.Suspect)})
		if dead {
			at.core.declareDead(s.now, m, nil)
		}
		if m.eligible(s.now) {
			t.Fatalf("dead %v: it gets work as %v", dead, m.status)
		}
		p.core.own.incarnation++
		p.core.own.record = p.Record(p.core.own.incarnation, 1)
		at.core.Updates(s.now, p.id, []*Update{p.core.own.record})
		if m.status != Alive || !m.eligible(s.now) {
			t.Errorf("dead %v: it is %v and gets no work for another %v", dead, m.status, m.eligibleAt-s.now)
		}
	}
}

// A pause of this node is detected by the first input after it, whether a tick or a
// queued message: the remaining time to refute is unchanged, suspicions that begin after
// the pause are not prolonged, and accusers heard then do not cancel the extension.
func TestPauseIsDetectedByFirstInput(t *testing.T) {
	const pause = 20 * time.Second
	for _, first := range []string{"a tick", "a rumor"} {
		s := newSim(1, 12, testTuning())
		s.run(20 * time.Second)
		at, before, after := s.nodes[0], s.nodes[1], s.nodes[2]
		accuse := func(now time.Duration, by, of *simNode) {
			m := at.core.members[of.id]
			at.core.Updates(now, by.id, []*Update{by.Accuse(of.id, m.incarnation, proto.Suspect)})
		}
		left := func(now time.Duration, of *simNode) time.Duration {
			return at.core.members[of.id].suspicion.deadline - now
		}
		accuse(s.now, s.nodes[3], before)
		was, health := left(s.now, before), at.core.own.health
		now := s.now + pause
		if first == "a tick" {
			at.core.Tick(now)
		}
		for by := 3; by < 7; by++ {
			accuse(now, s.nodes[by], after)
		}
		at.core.Tick(now)
		if at.core.counts.Pauses != 1 || at.core.own.health <= health {
			t.Errorf("%s first: %d pauses noticed, health %d", first, at.core.counts.Pauses, at.core.own.health)
		}
		if got := left(now, before); got < was {
			t.Errorf("%s first: the earlier suspect had %v left, has %v", first, was, got)
		}
		if got := left(now, after); got > 4*time.Second {
			t.Errorf("%s first: a node accused by four after the pause has %v", first, got)
		}
		for by := 4; by < 7; by++ {
			accuse(now, s.nodes[by], before)
		}
		if got := left(now, before); got < 2*time.Second {
			t.Errorf("%s first: a node accused by four, once before the pause, has %v", first, got)
		}
	}
}

// A refutation is published twice, because a node that misses it reaches a wrong verdict.
func TestRefutationIsPublishedTwice(t *testing.T) {
	s := newSim(1, 5, testTuning())
	s.run(20 * time.Second)
	c := s.nodes[0].core
	published := 0
	count := func(actions []Action) {
		for _, a := range actions {
			if a.Kind == DoPublish && a.Updates[0].Record.GetIncarnation() == c.own.incarnation {
				published++
			}
		}
	}
	was := c.own.incarnation
	count(c.Updates(s.now, s.nodes[1].id, []*Update{s.nodes[1].Accuse(c.self, was, proto.Suspect)}))
	for now := s.now; now < s.now+time.Second; now = max(c.Next(), now+time.Millisecond) {
		count(c.Tick(now))
	}
	if c.own.incarnation != was+1 || published != 2 {
		t.Errorf("incarnation %d after %d, published %d times", c.own.incarnation, was, published)
	}
}

// However many members are made up, a node keeps MaxMembers of them, raises one alarm and
// continues with those it has.
func TestMembersAreBounded(t *testing.T) {
	const most, made = 20, 500
	s := newSim(1, 10, tuned(func(t *Tuning) { t.MaxMembers = most }))
	s.run(10 * time.Second)
	at := s.nodes[0]
	alarms := 0
	s.events = func(n *simNode, e *Event) {
		if n == at && e.Kind == Alarm {
			alarms++
		}
	}
	for i := range made {
		p := proto.PeerID{9, byte(i), byte(i >> 8)}
		made := &simNode{s: s, id: p, boot: 1}
		s.act(at, at.core.Introduced(s.now, p))
		s.act(at, at.core.Updates(s.now, s.nodes[1].id, []*Update{made.Record(1<<20, 1)}))
	}
	c := at.core
	if len(c.members) != most || len(c.probing.ring) != most || len(c.digest().lines) != most+1 || len(c.rumors.waiting) > maxRumors {
		t.Errorf("%d rows, %d in the ring, %d lines, %d rumors", len(c.members), len(c.probing.ring), len(c.digest().lines), len(c.rumors.waiting))
	}
	if alarms != 1 || c.counts.Refused != 2*(made-most+9) {
		t.Errorf("%d alarms, %d refused", alarms, c.counts.Refused)
	}
	ans, _ := c.Answer(s.now, s.nodes[1].id, &Ask{Lines: []Line{{Peer: proto.PeerID{10}, Incarnation: 1, Liveness: proto.Alive}}, After: proto.PeerID{9, 255, 255, 255}})
	if len(ans.Wanted) != 0 {
		t.Errorf("it requests %d members although it is full", len(ans.Wanted))
	}
}
