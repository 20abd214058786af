package node

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// A scene is the mesh of a situation: it measures how long things take and knows every
// change of a member's status that a node reported.
type scene struct {
	*simMesh
	tasks []proto.TaskID

	mu      sync.Mutex
	changes []statusChange
}

// A statusChange is a report of a node about another one.
type statusChange struct {
	by, of string
	to     gossip.Status
}

// newScene starts the nodes of a situation.
func newScene(t *testing.T, of situation, size int) *scene {
	sc := new(scene)
	sc.simMesh = newSimMeshWith(t, size, 1, of.link, func(s *simNode, cfg *Config) {
		if s.place == size-1 && s.life == 0 {
			s.mesh.SetNodeLink(s.at, of.last)
		}
		if s.place >= size-2 && s.life == 0 {
			s.mesh.Behind(of.behind, s.at)
		}
		cfg.Net.Relay = !of.noRelays
		sc.watch(s, cfg, of.busy)
	})
	return sc
}

// meet waits until all nodes know each other and are connected, the last one only if it is
// not apart.
func (sc *scene) meet(bound time.Duration, apart bool) {
	sc.t.Helper()
	if !apart {
		sc.within(bound, "the first view", func() bool { return sc.allAlive() && sc.allConnected() })
	}
	sc.forget()
}

// relayOf returns the relay of the path between two nodes.
func (sc *scene) relayOf(a, b *simNode) *simNode {
	sc.t.Helper()
	by := a.connection(b).Relay
	i := slices.IndexFunc(sc.nodes, func(s *simNode) bool { return s.peer() == by })
	if i < 0 {
		sc.t.Fatalf("the path is %+v", a.connection(b))
	}
	return sc.nodes[i]
}

// watch notes what gossip reports at a node. If busy, the node tells of other work every 4 s.
func (sc *scene) watch(s *simNode, cfg *Config, busy bool) {
	cfg.Simulated.Gossip = func(c *gossip.Config) {
		if self := c.Self; busy {
			c.Self = func() gossip.Self {
				own := self()
				own.Load = &proto.Load{Slots: 4, Busy: uint32(time.Now().Unix() / 4 % 2 * 4)}
				return own
			}
		}
		next := c.Changed
		c.Changed = func(e gossip.Event) {
			if e.Kind == gossip.Changed {
				sc.mu.Lock()
				sc.changes = append(sc.changes, statusChange{s.name, s.mesh.nameOf(e.Peer), e.To})
				sc.mu.Unlock()
			}
			next(e)
		}
	}
}

// reports counts the reports of this status since the scene began.
func (sc *scene) reports(of gossip.Status) (count int) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	for _, c := range sc.changes {
		if c.to == of {
			count++
		}
	}
	return count
}

// forget drops all reports so far.
func (sc *scene) forget() {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.changes = nil
}

// noDeath checks that no node reported another one DEAD.
func (sc *scene) noDeath() {
	sc.t.Helper()
	sc.mu.Lock()
	defer sc.mu.Unlock()
	for _, c := range sc.changes {
		if c.to == gossip.Dead {
			sc.t.Errorf("%s reported %s DEAD", c.by, c.of)
			return
		}
	}
}

// unequal gives each two nodes another round trip, up to most.
func (sc *scene) unequal(most time.Duration) {
	for i := range sc.nodes {
		for j := range i {
			sc.SetDistance(i, j, time.Duration(sc.rng.Int64N(int64(most/2))))
		}
	}
}

// patience is how long a scene waits for what takes longer than it may.
const patience = 5 * time.Minute

// within waits until ok returns true and fails the test if that takes longer than bound.
func (sc *scene) within(bound time.Duration, what string, ok func() bool) time.Duration {
	sc.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > bound+patience {
			sc.t.Fatalf("%s: not within %v, want %v", what, time.Since(began), bound)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return sc.took(bound, what, time.Since(began))
}

// took logs a time and fails the test if it exceeds bound.
func (sc *scene) took(bound time.Duration, what string, d time.Duration) time.Duration {
	sc.t.Helper()
	sc.t.Logf("%s: %v of %v", what, d, bound)
	if d > bound {
		sc.t.Errorf("%s: %v, want at most %v", what, d, bound)
	}
	return d
}

// send submits a task with a body of this size.
func (sc *scene) send(from, to *simNode, size int) proto.TaskID {
	sc.t.Helper()
	body := fmt.Appendf(nil, "0 0 false %d;", len(sc.tasks))
	rest := make([]byte, max(0, size-len(body)))
	rand.NewChaCha8([32]byte{byte(len(sc.tasks))}).Read(rest)
	p := plan{class: proto.Normal, body: append(bytes.Clone(body), rest...)}
	got, err := from.get().Submit(sc.t.Context(), p.request(to.name))
	sc.checker.submitted(from.place, to.place, p, got, err)
	if err != nil {
		sc.t.Fatal(err)
	}
	id, err := proto.ParseTaskID(got.ID)
	if err != nil {
		sc.t.Fatal(err)
	}
	sc.tasks = append(sc.tasks, id)
	return id
}

// deliver sends a task and waits for its result.
func (sc *scene) deliver(bound time.Duration, what string, from, to *simNode, size int) time.Duration {
	sc.t.Helper()
	id := sc.send(from, to, size)
	return sc.within(bound, what, func() bool { return from.state(id) == proto.Success })
}

// both delivers a task each way.
func (sc *scene) both(bound time.Duration, what string, a, b *simNode, size int) {
	sc.t.Helper()
	sc.deliver(bound, what+" there", a, b, size)
	sc.deliver(bound, what+" back", b, a, size)
}

// stream sends small tasks every 200 ms for the time d, and checks that none takes longer
// than bound.
func (sc *scene) stream(d, bound time.Duration, what string, from, to *simNode) {
	sc.t.Helper()
	sent := map[proto.TaskID]time.Time{}
	var took []time.Duration
	for began := time.Now(); len(sent) > 0 || time.Since(began) < d; time.Sleep(20 * time.Millisecond) {
		if n := len(sent) + len(took); time.Since(began) < d && time.Since(began) >= time.Duration(n)*200*time.Millisecond {
			sent[sc.send(from, to, 100)] = time.Now()
		}
		for id, at := range sent {
			if from.state(id) == proto.Success {
				took = append(took, time.Since(at))
				delete(sent, id)
			}
		}
		if time.Since(began) > d+bound+patience {
			sc.t.Fatalf("%s: %d tasks never ended", what, len(sent))
		}
	}
	slices.Sort(took)
	sc.t.Logf("%s: %d tasks, median %v, worst %v of %v", what, len(took), took[len(took)/2], took[len(took)-1], bound)
	if worst := took[len(took)-1]; worst > bound {
		sc.t.Errorf("%s: a task took %v, want at most %v", what, worst, bound)
	}
}

// connects waits for a path of this kind in both directions.
func (sc *scene) connects(bound time.Duration, direct bool, a, b *simNode) time.Duration {
	sc.t.Helper()
	what := "a relayed path"
	if direct {
		what = "a direct path"
	}
	return sc.within(bound, what, func() bool { return sc.uses(direct, a, b) })
}

// uses reports whether both nodes use a path of this kind.
func (sc *scene) uses(direct bool, a, b *simNode) bool {
	x, y := a.connection(b), b.connection(a)
	return x.Connected && y.Connected && x.Direct == direct && y.Direct == direct
}

// sees logs how the other nodes see one of them, once a second, and returns in which share of
// the looks it is ALIVE.
func (sc *scene) sees(d time.Duration, at *simNode) (alive float64) {
	sc.t.Helper()
	seen, before := map[gossip.Status]int{}, sc.Stats()
	for range int(d / time.Second) {
		time.Sleep(time.Second)
		for _, s := range sc.nodes {
			if s != at && s.get() != nil {
				seen[s.statusOf(at)]++
			}
		}
	}
	after := sc.Stats()
	sc.t.Logf("%s is seen as %v, %d of %d packets of the mesh are dropped", at.name, seen, after.Dropped-before.Dropped, after.Sent-before.Sent)
	looks := 0
	for _, n := range seen {
		looks += n
	}
	return float64(seen[gossip.Alive]) / float64(max(looks, 1))
}

// accusers adds to the set those that accuse a node.
func (sc *scene) accusers(of *simNode, by map[proto.PeerID]bool) {
	for _, s := range sc.nodes {
		if s == of || s.get() == nil {
			continue
		}
		m, _ := s.get().gossip.Member(of.peer())
		for _, p := range m.Accusers {
			by[p] = true
		}
	}
}

// once checks that each task and body has arrived exactly once.
func (sc *scene) once() {
	sc.t.Helper()
	sc.within(time.Minute, "the last result", func() bool { return sc.checker.countOpen(sc.nodes) == 0 })
	if counts := sc.checker.checkAll(sc.nodes); counts["SUCCESS"] != len(sc.tasks) {
		sc.t.Errorf("of %d tasks: %v", len(sc.tasks), counts)
	}
	for _, id := range sc.tasks {
		if n := sc.checker.runsOf(id.String()); n != 1 {
			sc.t.Errorf("task %s ran %d times", id, n)
		}
	}
}

// narrow is the link of a member with so many Mbit/s, 60 ms from the network, before which
// so many bytes can wait, as in a simple router; 0: it is shared fairly, as by fq_codel.
func narrow(mbps float64, queue int) transporttest.NodeLink {
	return transporttest.Both(transporttest.Direction{Latency: 30 * ms, Mbps: mbps, Queue: queue})
}
