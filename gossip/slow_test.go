package gossip

import (
	"testing"
	"time"
)

// A member behind a link that delays everything by seconds, as a narrow one does while its
// long queue fills, is not declared dead, nor are others by it: what it sends shows that it
// lives, even if its answers come too late. Once the round trips are known nobody suspects
// it either.
func TestSlowMemberStaysAlive(t *testing.T) {
	for seed := range uint64(8) {
		for _, late := range []time.Duration{time.Second, 2500 * time.Millisecond, 4 * time.Second} {
			s := newSim(seed, 15, testTuning())
			s.run(time.Minute)
			before := s.counts()
			slow := s.nodes[14]
			s.chatter(slow)
			s.events = func(at *simNode, e *Event) {
				if after := s.now - time.Minute; e.Kind == Changed && (e.To == Dead || e.To == Suspect && after > 2*time.Minute) {
					t.Errorf("%v each way: after %v node %d considers node %d %v", late, after, at.i, s.find(e.Peer).i, e.To)
				}
			}
			for i := range 20 {
				s.slow[slow.i] = late * time.Duration(i+1) / 20
				s.run(time.Second)
			}
			s.run(10 * time.Minute)
			if c := s.counts(); c.Slow == before.Slow {
				t.Errorf("%v each way: no answer was late", late)
			}
			s.events = nil
			s.kill(slow)
			known := func() bool { return s.agree(actualStatus) }
			if d := s.until(5*time.Minute, known); d > 90*time.Second {
				t.Errorf("%v each way: its death is known after %v", late, d)
			} else {
				t.Logf("%v each way: its death is known after %v", late, d)
			}
		}
	}
}

// chatter lets a packet pass each way between n and every other node once a second, as
// gossipsub does, until n is killed.
func (s *sim) chatter(n *simNode) {
	if !n.up {
		return
	}
	for _, o := range s.nodes {
		s.after(s.slow[n.i], func() { o.got[n.id]++; n.got[o.id]++ })
	}
	s.after(time.Second, func() { s.chatter(n) })
}

// A member whose process hangs, but whose system still acknowledges packets, is declared
// dead, later than one that is silent.
func TestHungMemberIsDeclaredDead(t *testing.T) {
	s := newSim(1, 15, testTuning())
	s.run(time.Minute)
	hung := s.nodes[14]
	s.pause(hung, time.Hour)
	dead := func() bool {
		for _, n := range s.nodes[:14] {
			n.got[hung.id]++
			if n.core.members[hung.id].status != Dead {
				return false
			}
		}
		return true
	}
	if d := s.until(10*time.Minute, dead); d < maxUnanswered || d > 2*time.Minute {
		t.Errorf("it is declared dead after %v", d)
	} else {
		t.Logf("it is declared dead after %v", d)
	}
	if c := s.counts(); c.Postponed == 0 {
		t.Error("no verdict was postponed")
	}
}
