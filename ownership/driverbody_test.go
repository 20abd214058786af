package ownership

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// testBodies configures the handling of large bodies in a cluster.
type testBodies struct {
	large  bool // results are large
	fetch  int  // tasks have large bodies, which arrive after so many requests; below 0: never
	mu     sync.Mutex
	whole  bool // large results have arrived at their home
	lent   map[proto.TaskID]int
	forgot map[proto.TaskID]int
}

func (b *testBodies) absent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.whole
}

func (b *testBodies) asked(id proto.TaskID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lent[id]
}

// wanted returns fetch, after setting it to set unless that is zero.
func (b *testBodies) wanted(set int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if set != 0 {
		b.fetch = set
	}
	return b.fetch
}

func (n *clusterNode) Offer(id proto.TaskID, _ proto.PeerID) {
	b := &n.cluster.bodies
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lent == nil {
		b.lent = map[proto.TaskID]int{}
	}
	b.lent[id]++
}

func (n *clusterNode) SendBodyFirst(_ proto.PeerID, _ proto.MessageType, _ proto.TaskID, _ *proto.Envelope, after func()) {
	after()
}

func (n *clusterNode) Forget(id proto.TaskID, _ *proto.Outcome) {
	b := &n.cluster.bodies
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.forgot == nil {
		b.forgot = map[proto.TaskID]int{}
	}
	b.forgot[id]++
}

// fetch waits for the body of a task, and returns false if it did not arrive.
func (n *clusterNode) fetch(driver *Driver, id proto.TaskID, stop chan struct{}) bool {
	b := &n.cluster.bodies
	if b.wanted(0) == 0 {
		return true
	}
	driver.Fetch(id, true)
	for {
		if want := b.wanted(0); want > 0 && b.asked(id) >= want {
			driver.Fetch(id, false)
			return true
		}
		select {
		case <-stop:
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A result whose body is not at its home yet ends nothing, and keeps its lease; it ends its
// task once the body is there (I3, I4).
func TestResultCountsOnlyWithItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, time.Second)
		defer w.close()
		w.bodies.large = true
		for i := range 6 {
			w.nodes[0].add(i, nil)
		}
		time.Sleep(time.Minute)
		w.mu.Lock()
		far := map[bool]int{}
		for id, n := range w.starts {
			if n != 1 {
				t.Errorf("I6: %s was started %d times while its result waited", id, n)
			}
			_, ended := w.ends[id]
			far[ended]++
		}
		w.mu.Unlock()
		if far[false] == 0 || far[true] == 0 { // results of the home itself are there
			t.Fatalf("%d have ended, %d wait for their body: want some of each", far[true], far[false])
		}
		w.bodies.mu.Lock()
		w.bodies.whole = true
		w.bodies.mu.Unlock()
		w.settled(6, 5*time.Second)
		time.Sleep(3 * time.Second)
		w.bodies.mu.Lock()
		defer w.bodies.mu.Unlock()
		for id := range w.ends {
			if w.bodies.forgot[id] != 1 {
				t.Errorf("the result of %s was let go %d times, want once", id, w.bodies.forgot[id])
			}
		}
	})
}

// An owner without the body of a task asks its home at once, then with each renewal, and
// does not start before: the lease continues meanwhile.
func TestOwnerAsksForTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, time.Second)
		defer w.close()
		w.bodies.wanted(20) // 40 s of renewals, longer than a lease
		w.nodes[0].add(0, nil)
		time.Sleep(time.Second)
		if n := w.bodies.asked(testTaskID(0)); n < 1 || n > 2 { // at once, and with the first renewal
			t.Errorf("asked %d times within a second, want once or twice", n)
		}
		time.Sleep(20 * time.Second)
		w.mu.Lock()
		if n := w.starts[testTaskID(0)]; n != 0 {
			t.Errorf("started %d times before its body was there", n)
		}
		w.mu.Unlock()
		w.settled(1, 30*time.Second)
		if n := w.starts[testTaskID(0)]; n != 1 {
			t.Errorf("I6: started %d times, want once: a lease that waits for its body is renewed", n)
		}
		before := w.bodies.asked(testTaskID(0))
		time.Sleep(10 * time.Second)
		if n := w.bodies.asked(testTaskID(0)); n != before {
			t.Errorf("asked %d times more after the body was there", n-before)
		}
	})
}

// A lease whose body does not arrive is released, spends nothing, and goes to another node.
func TestLeaseIsReturnedWithoutItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, time.Second)
		defer w.close()
		w.bodies.wanted(-1)
		w.nodes[0].add(0, nil)
		time.Sleep(5 * time.Second)
		first := w.holder(t)
		if err := first.driver.Return(context.Background(), testTaskID(0), "it does not come", 30_000); err != nil {
			t.Fatal(err)
		}
		w.bodies.wanted(1) // for the next owner; this one must not find it there
		w.settled(1, time.Minute)
		if got, want := w.ends[testTaskID(0)][0], 1-first.index; got[len("SUCCESS by ")] != byte('0'+want) {
			t.Errorf("ended as %q, want by node %d", got, want)
		}
	})
}

// holder returns the owner of the only task.
func (w *cluster) holder(t *testing.T) *clusterNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.nodes {
		if n.stops[testTaskID(0)] != nil {
			return n
		}
	}
	t.Fatal("no node was granted the task")
	return nil
}

// The body of a task is offered only to its owner, under its newest lease: other nodes that
// ask are told that their lease does not count (I4, I18).
func TestBodyIsOfferedOnlyToTheOwner(t *testing.T) {
	tests := []struct {
		name   string
		from   proto.PeerID
		change func(*proto.Claim)
		lent   int
	}{
		{"the owner", vOwner, func(*proto.Claim) {}, 1},
		{"the owner does not ask", vOwner, func(k *proto.Claim) { k.Fetch = false }, 0},
		{"another member", vOther, func(*proto.Claim) {}, 0},
		{"an older epoch", vOwner, func(k *proto.Claim) { k.EpochCounter-- }, 0},
		{"another token", vOwner, func(k *proto.Claim) { k.Token = filled(9) }, 0},
		{"another start of the owner", vOwner, func(k *proto.Claim) { k.BootId = vCloneBoot[:] }, 0},
		{"a task that is not here", vOwner, func(k *proto.Claim) { k.Task = vGiven[:] }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newVictim(t)
			k := v.claim()
			k.Fetch = true
			tt.change(k)
			v.mustSend(tt.from, &proto.Renew{Number: 1, Claims: []*proto.Claim{k}})
			if len(v.offers) != tt.lent || tt.lent == 1 && v.offers[0] != (BodyOffer{vTask, vOwner}) {
				t.Errorf("lent %v, want %d of %s to its owner", v.offers, tt.lent, vTask)
			}
		})
	}
}

// The home of a queue accepts no result larger than the task allows, with the body in the
// record or sent before it: the task becomes a dead letter, without that result.
func TestAResultObeysTheLimitOfItsTask(t *testing.T) {
	for name, large := range map[string]bool{"in the record": false, "sent before": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, 2, time.Second)
				defer w.close()
				w.mu.Lock()
				w.bodies.large = large
				w.mu.Unlock()
				for i, most := range []uint64{0, 5000, 7} {
					w.nodes[0].add(i, func(x *Task) { x.Options = &proto.TaskOptions{MaxResult: most} })
				}
				time.Sleep(time.Minute)
				w.mu.Lock()
				defer w.mu.Unlock()
				for i, want := range []string{"SUCCESS by", "SUCCESS by", "DEAD_LETTER "} {
					if large && i < 2 {
						continue // their bodies never arrive
					}
					if got := w.ends[testTaskID(i)]; len(got) != 1 || !strings.HasPrefix(got[0], want) || i == 2 && got[0] != want {
						t.Errorf("task %d ended %q, want %s", i, got, want)
					}
				}
			})
		})
	}
}
