package gossip

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// Messages of maximum size by one member leave room for those of others.
func TestLargeMessagesLeaveRoomForOthers(t *testing.T) {
	v := newReceiver(t)
	a, b := v.a.keys.Peer(), v.b.keys.Peer()
	for range 2 * maxWaitingPeer { // not processed
		v.runner.Control(a, &proto.Message{Type: proto.TypeProbe, Payload: make([]byte, proto.MaxControl)})
	}
	v.runner.Control(b, &proto.Message{Type: proto.TypeProbe, Payload: make([]byte, 100)})
	if !slices.ContainsFunc(v.runner.in.waiting, func(g inMsg) bool { return g.from == b }) {
		t.Errorf("none of the %d queued messages is from the second member", len(v.runner.in.waiting))
	}
}

// A member that accuses another repeatedly, as soon as it has refuted, does not make it
// consider itself faulty: it continues to claim work.
func TestOneAccuserCannotPauseANode(t *testing.T) {
	s := newSim(1, 6, testTuning())
	s.run(time.Minute)
	liar, victim := s.nodes[1], s.nodes[0]
	poor := 0
	for range 300 {
		s.act(victim, victim.core.Updates(s.now, liar.id, []*Update{liar.Accuse(victim.id, victim.core.own.incarnation, proto.Suspect)}))
		s.run(time.Second)
		if victim.core.Degraded(s.now) {
			poor++
		}
	}
	if c := victim.core.counts; c.OwnRefutations < 300 {
		t.Fatalf("%d accusations were refuted", c.OwnRefutations)
	}
	if poor > 0 {
		t.Errorf("it considered itself faulty for %d of 300 seconds", poor)
	}
}

// Nor do two, however often they accuse: an accuser that answers this node's probes, or
// received a refutation before, adds nothing. Two that do not answer count once, until
// they have been silent for a minute.
func TestTwoAccusersCannotPauseANode(t *testing.T) {
	for _, answers := range []bool{true, false} {
		s := newSim(1, 6, testTuning())
		s.run(time.Minute)
		victim, poor := s.nodes[0], 0
		for range 300 {
			for _, liar := range s.nodes[1:3] {
				if !answers {
					victim.core.members[liar.id].path.replied = 0
				}
				s.act(victim, victim.core.Updates(s.now, liar.id, []*Update{liar.Accuse(victim.id, victim.core.own.incarnation, proto.Suspect)}))
			}
			s.run(time.Second)
			if victim.core.Degraded(s.now) {
				poor++
			}
		}
		if c := victim.core.counts; c.OwnRefutations < 600 || len(victim.core.Accusers(s.now)) != 2 {
			t.Fatalf("%d accusations were refuted, by %d", c.OwnRefutations, len(victim.core.Accusers(s.now)))
		}
		if most := int(2 * testTuning().SuspectRecover / time.Second); answers && poor > 0 || !answers && (poor == 0 || poor > most) {
			t.Errorf("answers %v: it considered itself isolated for %d of 300 seconds", answers, poor)
		}
	}
}

// Nor do they keep it out of the shared queues: who refutes an accusation at once was not away. One
// that did not refute it for seconds waits after that.
func TestAccusersKeepNobodyOutOfSharedQueues(t *testing.T) {
	s := newSim(1, 6, testTuning())
	s.run(time.Minute)
	victim, out := s.nodes[0], 0
	accuse := func() {
		incarnation := victim.core.own.incarnation
		for _, liar := range s.nodes[1:3] {
			for _, n := range s.nodes {
				s.act(n, n.core.Updates(s.now, liar.id, []*Update{liar.Accuse(victim.id, incarnation, proto.Suspect)}))
			}
		}
	}
	eligible := func() bool {
		for _, n := range s.nodes[3:] {
			if !n.core.members[victim.id].eligible(s.now) {
				return false
			}
		}
		return true
	}
	for range 300 {
		accuse()
		s.run(time.Second)
		if !eligible() {
			out++
		}
	}
	if c := s.nodes[3].core.counts; c.Suspicions < 100 || c.Verdicts > 0 {
		t.Fatalf("it was accused %d times, and declared dead %d times", c.Suspicions, c.Verdicts)
	}
	if out > 0 {
		t.Errorf("it would get no work for %d of 300 seconds", out)
	}
	s.run(10 * time.Second) // until accusations by these two count again
	s.pause(victim, 3*time.Second)
	accuse()
	s.run(4 * time.Second)
	if m := s.nodes[3].core.members[victim.id]; m.status != Alive || m.eligible(s.now) {
		t.Errorf("after a pause it is %v and gets work at once: %v", m.status, m.eligible(s.now))
	}
}

// Each event of a member leads to a write to disk and displaces an older event. A member that states
// ever new things of itself, or accuses without end, causes few; what it states at last is known.
func TestOneMemberCausesFewEvents(t *testing.T) {
	s := newSim(1, 6, testTuning())
	s.run(time.Minute)
	at, liar, events := s.nodes[0], s.nodes[1], 0
	s.events = func(n *simNode, _ *Event) {
		if n == at {
			events++
		}
	}
	for i := range 3000 {
		own := &liar.core.own
		own.revision++
		switch i % 3 {
		case 1:
			liar.state = proto.NodeStopped
		case 2:
			liar.state = proto.NodeRunning
			own.incarnation++
		}
		own.record = liar.Record(own.incarnation, own.revision)
		own.record.Record.Addrs = []string{fmt.Sprintf("/ip4/192.0.2.%d/tcp/4001", i%2)}
		s.act(at, at.core.Updates(s.now, liar.id, []*Update{
			own.record, liar.Accuse(at.id, math.MaxUint64, proto.Suspect), liar.Accuse(at.id, at.core.own.incarnation, proto.Suspect),
		}))
		s.run(5 * time.Millisecond)
	}
	if events > 300 {
		t.Errorf("%d events in a quarter of a minute", events)
	}
	liar.core.cachedDigest = nil
	s.run(2 * time.Minute)
	if m := at.core.members[liar.id]; m.status != Alive || m.revision() != liar.core.own.revision {
		t.Errorf("after that it is %v with revision %d, want %d", m.status, m.revision(), liar.core.own.revision)
	}
}

// A member that claims that a dead node answers is believed only where it was asked to
// help: the death is detected.
func TestOnlyHelpersCanVouchForATarget(t *testing.T) {
	s := newSim(2, 20, testTuning())
	s.run(time.Minute)
	liar, dead := s.nodes[1], s.nodes[2]
	s.kill(dead)
	lies := 0
	for range 60_000 { // a minute, in steps of a millisecond
		s.run(time.Millisecond)
		s.act(liar, liar.core.Forgotten(s.now, dead.id)) // so that it accuses no one
		for _, n := range s.nodes {
			if n == liar || n == dead {
				continue
			}
			for _, o := range slices.Clone(n.core.probing.pending) {
				if o.target.id != dead.id || o.ask != never {
					continue
				}
				lies++
				s.act(n, n.core.Reply(s.now, liar.id, o.number, dead.id, false, nil))
			}
		}
	}
	for _, n := range s.nodes {
		if m, _ := n.core.Member(s.now, dead.id); n != dead && n != liar && m.Status != Dead || lies == 0 {
			t.Fatalf("after %d lies node %d considers the dead node %v", lies, n.i, m.Status)
		}
	}
}

// A stalledNet is a network on which exchanges with some nodes never end: each step is
// answered at the last moment, and there is always more.
type stalledNet struct {
	*testNode
	slow map[proto.PeerID]bool

	mu    sync.Mutex
	asked map[proto.PeerID]int
}

func (s *stalledNet) Exchange(ctx context.Context, p proto.PeerID, m *proto.Message) (*proto.Message, error) {
	s.mu.Lock()
	s.asked[p]++
	s.mu.Unlock()
	if !s.slow[p] {
		return s.testNode.Exchange(ctx, p, m)
	}
	select {
	case <-time.After(stepTime - time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var q proto.SyncRequest
	if err := proto.Decode(m.GetPayload(), &q); err != nil {
		return nil, err
	}
	after := append(make([]byte, 32-min(len(q.GetAfter()), 32)), q.GetAfter()...)
	for i := len(after) - 1; i >= 0; i-- { // the next id
		if after[i]++; after[i] != 0 {
			break
		}
	}
	payload, err := proto.Encode(nil, &proto.SyncReply{Wanted: [][]byte{after}, More: true})
	return &proto.Message{Type: proto.TypeSynced, Payload: payload}, err
}

// Members whose exchanges never end do not block exchanges with others.
func TestEndlessExchangesLeaveRoomForOthers(t *testing.T) {
	for _, liars := range []int{1, maxExchanges - 1, maxExchanges + 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestMesh(t, liars+3)
			w.introduceAll()
			me, good := w.order[0], w.order[liars+2].keys.Peer()
			for _, h := range w.order[1:] {
				h.start()
			}
			net := &stalledNet{testNode: me, slow: map[proto.PeerID]bool{}, asked: map[proto.PeerID]int{}}
			for _, h := range w.order[1 : 1+liars] {
				net.slow[h.keys.Peer()] = true
			}
			runner, err := Open(me.keys, w.mesh, net, me, Config{Tuning: testTuning(), Boot: 1, Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			me.setRunner(runner, true)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { runner.Run(ctx) })
			for _, h := range w.order[1:] {
				runner.Connected(h.keys.Peer(), true)
			}
			time.Sleep(time.Minute)
			before, turns := net.count(good), 12
			for range turns { // minutes in which the liars always publish other roots
				for range 60 {
					for p := range net.slow {
						runner.compareRoot(p, [32]byte{1})
					}
					time.Sleep(time.Second)
				}
				runner.compareRoot(good, [32]byte{1})
			}
			time.Sleep(time.Minute)
			want := turns / 2 // exchanges begun by the other side count too
			if liars > maxExchanges {
				want = 2 // it waits until one of theirs ends
			}
			if n := net.count(good) - before; n < want {
				t.Errorf("%d liars: in %d minutes another member was asked %d times", liars, turns, n)
			}
			cancel()
			wg.Wait()
			me.setRunner(runner, false)
			w.stop()
		})
	}
}

func (s *stalledNet) count(p proto.PeerID) int { s.mu.Lock(); defer s.mu.Unlock(); return s.asked[p] }

// Old accusations of this node, which anybody can repeat, do not count against the member that made
// them: what it says of others is believed.
func TestRepeatedOldAccusationsCostTheirAuthorNothing(t *testing.T) {
	s := newSim(1, 6, testTuning())
	s.run(time.Minute)
	at, by, third := s.nodes[0], s.nodes[1], s.nodes[2]
	old := by.Accuse(at.id, at.core.own.incarnation-1, proto.Suspect)
	for range 100 {
		s.act(at, at.core.Updates(s.now, s.nodes[3].id, []*Update{old}))
	}
	s.act(at, at.core.Updates(s.now, by.id, []*Update{by.Accuse(third.id, third.core.own.incarnation, proto.Suspect)}))
	if m := at.core.members[third.id]; m.status != Suspect {
		t.Errorf("after an accusation it is %v", m.status)
	}
}

// That a member stops is known at once, however often it had to refute accusations or was started
// before.
func TestLastStatementIsNeverTooMuch(t *testing.T) {
	s := newSim(1, 6, testTuning())
	s.run(time.Minute)
	at, x := s.nodes[0], s.nodes[1]
	incarnation := x.core.own.incarnation
	tell := func(state proto.NodeState) {
		incarnation++
		x.state = state
		s.act(at, at.core.Updates(s.now, x.id, []*Update{x.Record(incarnation, 1)}))
		s.run(10 * time.Millisecond)
	}
	for range 200 {
		tell(proto.NodeRunning)
	}
	if m := at.core.members[x.id]; m.incarnation != incarnation {
		t.Errorf("refutations are ignored: incarnation %d, want %d", m.incarnation, incarnation)
	}
	for range 100 {
		tell(proto.NodeStopped)
		tell(proto.NodeRunning)
	}
	tell(proto.NodeStopped)
	if m := at.core.members[x.id]; m.status != Left {
		t.Errorf("it is %v", m.status)
	}
}
