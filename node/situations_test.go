package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// A situation is a network, and what happens in it.
type situation struct {
	name     string
	nodes    int // in the long form
	brief    int // in the short form; 0: not in it
	link     transporttest.Link
	last     transporttest.NodeLink // of the last node, from its first start on
	noRelays bool
	busy     bool                           // the work of each node changes all the time
	apart    bool                           // the last node need not know all others at first
	behind   transporttest.Kind             // of the NATs of the last two nodes
	run      func(sc *scene, a, b *simNode) // b is the last node, a the one before it
}

// fullMTU is what a path of 1500 bytes leaves for UDP over IPv4.
const fullMTU = 1500 - 28

// kB and MB are sizes of bodies.
const (
	kB = 1000
	MB = 1000 * kB
)

const ms = time.Millisecond

// mtu is a link that silently drops packets larger than this.
func mtu(bytes int) transporttest.NodeLink {
	return transporttest.Both(transporttest.Direction{MTU: bytes - 28})
}

var (
	wanLink = transporttest.Link{Latency: 20 * ms, Mbps: 20, Seed: 1}
	mtuLink = transporttest.Link{Latency: 20 * ms, Mbps: 20, MTU: fullMTU, Seed: 1}
)

var situations = []situation{
	{name: "a node loses 30 % of what it sends", nodes: 4, brief: 3, link: wanLink, run: losesOneWay},
	{name: "round trips of 600 ms", nodes: 4, brief: 3, link: transporttest.Link{Latency: 300 * ms, Mbps: 20, Seed: 1}, run: farApart},
	{name: "64 kbit-s in a mesh of 4", nodes: 4, link: wanLink, last: narrow(0.064, 24*kB), run: narrowInSmallMesh},
	{name: "a member gets 256 kbit-s and a long queue in a mesh of 15", nodes: 15, link: lanLink, last: narrow(1000, 0), run: becomesNarrow(5*time.Minute, 4*time.Minute, 0.256, 150*kB, 1)},
	{name: "a member gets 64 kbit-s in a mesh of 15", nodes: 15, link: lanLink, last: narrow(1000, 0), run: becomesNarrow(5*time.Minute, 4*time.Minute, 0.064, 24*kB, 1)},
	{name: "a member gets 64 kbit-s at once in a mesh of 15", nodes: 15, link: lanLink, last: narrow(1000, 0), run: becomesNarrow(0, 6*time.Minute, 0.064, 24*kB, 0.97)},
	{name: "a member gets 64 kbit-s at once among 15 whose work changes", nodes: 15, link: lanLink, last: narrow(1000, 0), busy: true, run: becomesNarrow(0, 4*time.Minute, 0.064, 24*kB, 0.97)},
	{name: "a member gets 64 kbit-s and a long queue in a mesh of 15", nodes: 15, link: lanLink, last: narrow(1000, 0), run: becomesTooNarrow},
	{name: "a member joins 15 with 256 kbit-s", nodes: 15, link: lanLink, last: narrow(0.256, 0), apart: true, run: joinsNarrow(2*time.Minute, 2*time.Minute, 1)},
	{name: "a member joins 15 with 256 kbit-s and a long queue", nodes: 15, link: lanLink, last: narrow(0.256, 150*kB), apart: true, run: joinsNarrow(2*time.Minute, 2*time.Minute, 1)},
	{name: "a member joins 15 with 64 kbit-s", nodes: 15, link: lanLink, last: narrow(0.064, 8*kB), apart: true, run: joinsNarrow(6*time.Minute, 10*time.Minute, 0.97)},
	{name: "the MTU falls to 1400 among small tasks", nodes: 4, brief: 3, link: mtuLink, run: shrinks(1400, 0)},
	{name: "the MTU falls to 1330 among small tasks", nodes: 4, link: mtuLink, run: shrinks(1330, 0)},
	{name: "the MTU falls to 1400 within a body", nodes: 4, link: mtuLink, run: shrinks(1400, 10*MB)},
	{name: "the MTU falls to 1330 within a body", nodes: 4, link: mtuLink, run: shrinks(1330, 10*MB)},
	{name: "an MTU of 1400 from the beginning", nodes: 4, link: mtuLink, last: mtu(1400), run: smallPackets},
	{name: "an MTU of 1280 from the beginning", nodes: 4, brief: 3, link: mtuLink, last: mtu(1280), run: smallPackets},
	{name: "a link is up for 7 s and down for 7 s", nodes: 4, link: transporttest.Link{Latency: 20 * ms, Mbps: 4, Seed: 1}, run: flaps},
	{name: "one direction is dead, with a relay", nodes: 4, brief: 4, link: wanLink, run: deadDirectionWithRelay},
	{name: "one direction is dead, without a relay", nodes: 4, link: wanLink, noRelays: true, run: deadDirection},
	{name: "a relay is killed within a body", nodes: 4, link: wanLink, behind: transporttest.Symmetric, run: relayKilled},
	{name: "a node pauses for 3 s", nodes: 15, brief: 6, link: lanLink, run: pauses},
	{name: "the mesh is split for two minutes", nodes: 15, brief: 4, link: lanLink, run: split},
	{name: "a join and kills", nodes: 15, link: lanLink, run: joinsAndKills},
}

// TestSituations checks whole nodes in networks that are bad, or become so: each task and
// body arrives exactly once, within a bound, and the nodes have the right view of each
// other. BALEFIRE_LONG has all of them, in larger meshes.
func TestSituations(t *testing.T) {
	t.Parallel()
	for _, tt := range situations {
		size := tt.brief
		if longRun {
			size = tt.nodes
		}
		if size == 0 {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sc := newScene(t, tt, size)
				defer sc.close()
				sc.meet(time.Minute, tt.apart)
				tt.run(sc, sc.nodes[size-2], sc.nodes[size-1])
				sc.once()
			})
		})
	}
}

func losesOneWay(sc *scene, a, b *simNode) {
	sc.SetNodeLink(b.at, transporttest.NodeLink{Out: transporttest.Direction{Loss: 0.3}})
	sc.stream(30*time.Second, 3*time.Second, "small tasks to it", a, b)
	sc.stream(30*time.Second, 3*time.Second, "small tasks from it", b, a)
	sc.deliver(time.Minute, "1 MB to it", a, b, MB)
	sc.deliver(time.Minute, "1 MB from it", b, a, MB)
	sc.connects(0, true, a, b)
	sc.noDeath()
}

func farApart(sc *scene, a, b *simNode) {
	sc.both(2*time.Second, "a small task", a, b, 0)
	sc.deliver(30*time.Second, "5 MB", a, b, 5*MB)
	sc.connects(0, true, a, b)
	sc.noDeath()
	if n := sc.reports(gossip.Suspect); n > 0 {
		sc.t.Errorf("%d suspicions", n)
	}
}

func narrowInSmallMesh(sc *scene, a, b *simNode) {
	time.Sleep(time.Minute)
	sc.forget()
	sc.sees(time.Minute, b)
	for range 3 {
		sc.both(2*time.Second, "a small task", a, b, 0)
	}
	sc.noDeath()
	sc.deliver(30*time.Second, "50 kB", a, b, 50*kB)
	sc.deliver(10*time.Minute, "300 kB", a, b, 300*kB) // line rate 38 s
	sc.within(30*time.Second, "it is seen as ALIVE", sc.allAlive)
	sc.connects(30*time.Second, true, a, b)
}

// joinsNarrow is a narrow link from the join on. After some time its member is ALIVE, and stays so.
func joinsNarrow(settle, stays time.Duration, share float64) func(sc *scene, a, b *simNode) {
	return func(sc *scene, a, b *simNode) {
		sc.unequal(40 * ms)
		sc.sees(settle, b)
		sc.staysAlive(stays, share, a, b)
	}
}

// becomesNarrow is a link that becomes narrow some time after all nodes met: round trips are
// measured again, and told. After more time its member is ALIVE, and stays so.
func becomesNarrow(rest, settle time.Duration, mbps float64, queue int, share float64) func(sc *scene, a, b *simNode) {
	return func(sc *scene, a, b *simNode) {
		sc.unequal(40 * ms)
		time.Sleep(rest)
		sc.SetNodeLink(b.at, narrow(mbps, queue))
		sc.sees(settle, b)
		sc.staysAlive(10*time.Minute, share, a, b)
	}
}

// staysAlive checks that b is seen as ALIVE for the time d, or for this share of it, never as
// DEAD, and that its tasks arrive.
func (sc *scene) staysAlive(d time.Duration, share float64, a, b *simNode) {
	sc.t.Helper()
	sc.forget()
	if seen := sc.sees(d, b); seen < share {
		sc.t.Errorf("it is seen as ALIVE for %.3f of the time, want %.3f", seen, share)
	}
	if n := sc.reports(gossip.Suspect); n > 0 && share == 1 {
		sc.t.Errorf("%d suspicions", n)
	}
	for range 3 {
		sc.both(3*time.Second, "a small task", a, b, 0)
	}
	sc.deliver(90*time.Second, "200 kB", a, b, 200*kB)
	sc.noDeath()
}

// becomesTooNarrow is a link that the mesh overloads at first: its tasks arrive when the link has
// room again.
func becomesTooNarrow(sc *scene, a, b *simNode) {
	sc.unequal(40 * ms)
	time.Sleep(5 * time.Minute)
	sc.SetNodeLink(b.at, narrow(0.064, 150*kB))
	there, back := sc.send(a, b, 0), sc.send(b, a, 0)
	sc.sees(2*time.Minute, b)
	sc.within(10*time.Second, "the others see each other as ALIVE", func() bool {
		for _, s := range sc.nodes {
			for _, of := range sc.nodes {
				if s != of && s != b && of != b && s.statusOf(of) != gossip.Alive {
					return false
				}
			}
		}
		return true
	})
	sc.SetNodeLink(b.at, narrow(10, 150*kB))
	sc.within(30*time.Second, "the tasks, once the link has 10 Mbit/s", func() bool { return a.state(there) == proto.Success && b.state(back) == proto.Success })
	sc.within(time.Minute, "all are ALIVE and connected", func() bool { return sc.allAlive() && sc.allConnected() })
}

// shrinks is a path whose MTU falls while small tasks are sent, or within a body.
func shrinks(to, size int) func(sc *scene, a, b *simNode) {
	return func(sc *scene, a, b *simNode) {
		sc.both(5*time.Second, "a task", a, b, 300*kB)
		time.Sleep(20 * time.Second) // QUIC finds that the path carries full packets
		if size == 0 {
			sc.SetNodeLink(b.at, mtu(to))
			sc.stream(20*time.Second, 6*time.Second, "small tasks", a, b)
		} else {
			whole := sc.deliver(15*time.Second, "the body before that", a, b, size)
			id := sc.send(a, b, size)
			time.Sleep(time.Second)
			sc.SetNodeLink(b.at, mtu(to))
			rest := sc.within(15*time.Second, "the rest of the body", func() bool { return a.state(id) == proto.Success })
			sc.took(6*time.Second, "later than without", time.Second+rest-whole)
		}
		sc.both(2*time.Second, "a task afterwards", a, b, 300*kB)
		sc.connects(5*time.Second, true, a, b)
		sc.noDeath()
	}
}

func smallPackets(sc *scene, a, b *simNode) {
	sc.both(2*time.Second, "a small task", a, b, 0)
	sc.both(10*time.Second, "5 MB", a, b, 5*MB)
	sc.connects(0, true, a, b)
	sc.noDeath()
}

// flaps is a link that is down as long as it is up. QUIC doubles the time between two probes (RFC 9002,
// section 6.2.1): the one that finds the link up again may come as late as the link was down.
func flaps(sc *scene, a, b *simNode) {
	const outage = 7 * time.Second
	body, began := sc.send(a, b, 10*MB), time.Now()
	ended := func() bool { return a.state(body) == proto.Success }
	for !ended() && time.Since(began) < patience {
		time.Sleep(7 * time.Second)
		sc.Unplug(b.at)
		time.Sleep(3 * time.Second)
		task := sc.send(a, b, 0)
		time.Sleep(outage - 3*time.Second)
		sc.Plug(b.at)
		sc.within(outage, "a task after the link is up", func() bool { return a.state(task) == proto.Success })
	}
	sc.took(2*time.Minute, "the body", time.Since(began))
	sc.connects(5*time.Second, true, a, b)
}

func deadDirectionWithRelay(sc *scene, a, b *simNode) {
	for _, cut := range [][2]*simNode{{a, b}, {b, a}} {
		sc.Cut(cut[0].at, cut[1].at)
		sc.deliver(10*time.Second, "a task", a, b, 0)
		sc.connects(15*time.Second, false, a, b)
		sc.both(5*time.Second, "1 MB", a, b, MB)
		sc.Heal()
		sc.connects(time.Minute, true, a, b)
	}
	sc.noDeath()
}

func deadDirection(sc *scene, a, b *simNode) {
	for _, cut := range [][2]*simNode{{a, b}, {b, a}} {
		sc.Cut(cut[0].at, cut[1].at)
		there, back := sc.send(a, b, 0), sc.send(b, a, 0)
		time.Sleep(time.Minute)
		sc.within(0, "neither is connected", func() bool { return !a.connection(b).Connected && !b.connection(a).Connected })
		if a.state(there) == proto.Success || b.state(back) == proto.Success {
			sc.t.Error("a task has crossed a path that is dead in one direction")
		}
		if !sc.allAlive() {
			sc.t.Error("others can reach both, but one is not seen as ALIVE")
		}
		sc.Heal()
		sc.within(5*time.Second, "the tasks", func() bool { return a.state(there) == proto.Success && b.state(back) == proto.Success })
		sc.connects(5*time.Second, true, a, b)
	}
	sc.noDeath()
}

func relayKilled(sc *scene, a, b *simNode) {
	sc.connects(0, false, a, b)
	whole := sc.deliver(time.Minute, "10 MB", a, b, 10*MB)
	id := sc.send(a, b, 10*MB)
	time.Sleep(whole / 3)
	relay := sc.relayOf(a, b)
	relay.crash()
	sc.within(whole+10*time.Second, "10 MB, its relay is killed", func() bool { return a.state(id) == proto.Success })
	sc.connects(0, false, a, b)
	if sc.relayOf(a, b) == relay {
		sc.t.Error("the killed relay is in use")
	}
	sc.within(15*time.Second, "the death is known", func() bool { return sc.allSee(relay, gossip.Dead) })
	relay.start()
	sc.within(10*time.Second, "it is back", sc.allAlive)
}

func pauses(sc *scene, a, b *simNode) {
	const rounds = 10
	sc.unequal(40 * ms)
	time.Sleep(30 * time.Second)
	sc.forget()
	all := 0
	for i := range rounds {
		s := sc.nodes[len(sc.nodes)*i/rounds]
		by := map[proto.PeerID]bool{}
		watch := func(d time.Duration) {
			for range int(d / (20 * ms)) {
				time.Sleep(20 * ms)
				sc.accusers(s, by)
			}
		}
		sc.Hold(s.at)
		watch(3 * time.Second)
		sc.Release(s.at)
		sc.within(2*time.Second, "it is seen as ALIVE after a pause", func() bool { sc.accusers(s, by); return sc.allAlive() })
		watch(10 * time.Second)
		sc.t.Logf("%d members accused it", len(by))
		if all += len(by); len(by) > 5 {
			sc.t.Errorf("%d members accused a node that paused for 3 s, want at most 5", len(by))
		}
		sc.both(2*time.Second, "a small task", a, b, 0)
		time.Sleep(time.Duration(20+sc.rng.IntN(5)) * time.Second)
	}
	if all > 3*rounds {
		sc.t.Errorf("%d accusations in %d pauses of 3 s, want at most 3 each on average", all, rounds)
	}
	sc.noDeath()
}

// split divides the mesh into halves, one with a and one with b.
func split(sc *scene, a, b *simNode) {
	sc.unequal(40 * ms)
	time.Sleep(10 * time.Second)
	var halves [2][]int
	for i, s := range sc.nodes {
		halves[i%2] = append(halves[i%2], s.at)
	}
	sc.Partition(halves[:]...)
	there, back := sc.send(a, b, 0), sc.send(b, a, 0)
	time.Sleep(2 * time.Minute)
	for i, s := range sc.nodes {
		for j, of := range sc.nodes {
			if want := map[bool]gossip.Status{true: gossip.Alive, false: gossip.Dead}[i%2 == j%2]; i != j && s.statusOf(of) != want {
				sc.t.Errorf("%s sees %s as %v, want %v", s.name, of.name, s.statusOf(of), want)
			}
		}
	}
	sc.Heal()
	sc.within(10*time.Second, "all are ALIVE after the heal", sc.allAlive)
	sc.within(10*time.Second, "all are connected, and the tasks arrive", func() bool {
		return sc.allConnected() && a.state(there) == proto.Success && b.state(back) == proto.Success
	})
}

func joinsAndKills(sc *scene, a, b *simNode) {
	sc.unequal(40 * ms)
	time.Sleep(10 * time.Second)
	one := sc.add()
	for i := range one.place {
		sc.SetDistance(i, one.at, time.Duration(sc.rng.Int64N(int64(20*ms))))
	}
	sc.join(one)
	sc.within(5*time.Second, "a join is known to all", func() bool { return sc.allSee(one, gossip.Alive) })
	sc.both(2*time.Second, "a small task", b, one, 0)
	sc.noDeath()
	for _, i := range []int{2, len(sc.nodes) / 2, len(sc.nodes) - 4} {
		time.Sleep(time.Duration(sc.rng.IntN(3000)) * ms)
		s := sc.nodes[i]
		s.crash()
		sc.within(10*time.Second, "a kill is known to all", func() bool { return sc.allSee(s, gossip.Dead) })
		s.start()
		sc.within(5*time.Second, "its return is known to all", sc.allAlive)
	}
}
