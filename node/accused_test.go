package node

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// Two members that accuse the home of a queue once a second do not stop its grants,
// and a person is told who they are (I16).
func TestAccusersAreNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		liars := []*transporttest.Forger{c.forger("mallory", "send"), c.forger("zed", "send")}
		home, other := c.nodes[0].node, c.nodes[1].node
		self := home.keys.Peer()
		for _, f := range liars {
			defer f.Close()
		}
		number := uint64(time.Now().UnixNano())
		accuse := func(f *transporttest.Forger) {
			t.Helper()
			by, mesh := f.Peer(), f.Mesh.ID
			known, _ := other.gossip.Member(self)
			details, err := proto.Encode(nil, &proto.Accusation{
				Mesh: mesh[:], Peer: self[:], Accuser: by[:], Incarnation: known.Incarnation, Liveness: proto.Suspect,
			})
			if err != nil {
				t.Fatal(err)
			}
			number++
			data, err := proto.Encode(nil, &proto.Rumors{Rumors: []*proto.Rumor{{Accusation: f.Sign("accusation", details)}}, Number: number})
			if err == nil {
				err = f.Publish(data)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		refuted := home.gossip.Summary().Counts.OwnRefutations
		for i := range 60 {
			for _, f := range liars {
				accuse(f)
			}
			time.Sleep(time.Second)
			if i == 10 { // their first accusations are over
				c.waitAll(0, c.submitMany(0, 5), 30*time.Second)
			}
		}
		if n := home.gossip.Summary().Counts.OwnRefutations - refuted; n < 60 {
			t.Errorf("only %d accusations arrived", n)
		}
		if s := home.Views.MeshSummary(t.Context()); s.Isolated || strings.Join(s.Accusers, " ") == "" || !strings.Contains(strings.Join(s.Accusers, " "), "mallory") || !strings.Contains(strings.Join(s.Accusers, " "), "zed") {
			t.Errorf("isolated %v, the accusers are %q", s.Isolated, s.Accusers)
		}
		c.Unplug(0) // then they may be right
		c.await(time.Minute, "why to name them", func() bool { return namesAccusers(t, home, "mallory", "zed") })
	})
}

// namesAccusers reports whether home considers itself isolated and names these members,
// both in the answer of why about its queue and among the risks of the mesh.
func namesAccusers(t *testing.T, home *Node, names ...string) bool {
	t.Helper()
	b, err := home.Explainer.Why(t.Context(), "queue:build")
	if err != nil {
		t.Fatal(err)
	}
	risks := home.Views.MeshSummary(t.Context()).Risks
	at := slices.IndexFunc(risks, func(n wire.Note) bool { return n.Code == wire.NoteIsolated })
	if b.Cause.Code != wire.NoteSelfPaused || at < 0 {
		return false
	}
	slices.Sort(b.Cause.Names)
	slices.Sort(risks[at].Names)
	return slices.Equal(b.Cause.Names, names) && slices.Equal(risks[at].Names, names)
}

// The home of a queue whose other members are all gone considers itself isolated, and
// does the tasks itself (I16).
func TestLastNodeServesItsOwnQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		c.nodes[1].crash()
		c.nodes[2].crash()
		home := c.nodes[0].node
		for range 300 {
			if home.gossip.SelfPaused() {
				break
			}
			time.Sleep(time.Second)
		}
		time.Sleep(queuesNotice)
		if s := home.Views.MeshSummary(t.Context()); !s.Isolated || !s.Paused {
			t.Fatalf("it does not consider itself isolated: %+v", s)
		}
		if by := c.waitAll(0, c.submitMany(0, 5), time.Minute); by[0] != 5 {
			t.Errorf("it did %d of 5 tasks itself", by[0])
		}
		b, err := home.Explainer.Why(t.Context(), "queue:build")
		if err != nil || b.Cause.Code != wire.NoteSelfPaused || len(b.Cause.Names) > 0 || b.Cause.Of > 0 {
			t.Errorf("why reports %+v, %v", b.Cause, err)
		}
	})
}

// queuesNotice is more than the second after which the queues of a node notice what it
// believes of itself: before, they may grant to others.
const queuesNotice = 2 * time.Second

// The last node that runs does the tasks of a queue that it has seized, from a home that
// died, while others were there or when it was alone already, and takes nothing back from
// an owner that died since (I16). When they return every task ends.
func TestLastNodeServesASeizedQueue(t *testing.T) {
	for _, alone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, 20*time.Second)
			defer c.close()
			last := c.nodes[2].node
			c.nodes[0].peer() // of which the status is asked when it is down
			c.nodes[0].crash()
			var owned []string
			if !alone {
				seizeFrom(t, c, last)
				owned = c.submitMany(2, 8)
				c.await(time.Minute, "the other one to work", func() bool { return len(c.ranFirstAt(1)) > 0 })
			}
			c.nodes[1].crash()
			c.await(5*time.Minute, "it to be isolated", func() bool { return last.Views.MeshSummary(t.Context()).Isolated })
			time.Sleep(queuesNotice)
			if alone {
				seizeFrom(t, c, last)
			}
			if by := c.waitAll(2, c.submitMany(2, 5), time.Minute); by[2] != 5 {
				t.Errorf("it did %d of 5 tasks itself", by[2])
			}
			time.Sleep(5 * time.Minute)
			if n := c.reruns(); n != 0 {
				t.Errorf("%d tasks of a dead owner were started by an isolated home", n)
			}
			for _, s := range c.nodes[:2] {
				s.start()
				c.serve(s, 20*time.Second)
			}
			c.waitAll(2, owned, 10*time.Minute)
			c.awaitHome(2)
		})
	}
}

// seizeFrom lets n seize the queue from its home, the first node.
func seizeFrom(t *testing.T, c *cluster, n *Node) {
	t.Helper()
	c.await(5*time.Minute, "the home to be dead", func() bool { return c.nodes[2].statusOf(c.nodes[0]) == gossip.Dead })
	if _, err := n.Queues.Seize(t.Context(), "build", "n0"); err != nil {
		t.Fatal(err)
	}
}

// ranFirstAt returns the tasks whose first run was at a node.
func (c *cluster) ranFirstAt(place int) (ids []proto.TaskID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, runs := range c.runs {
		if runs[0].place == place {
			ids = append(ids, id)
		}
	}
	return ids
}
