package ownership

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// storeBatch is the largest batch of the store, and storeCost what each write adds to its
// key and value.
const storeBatch, storeCost = 4 << 20, 40

// weightOf returns the batch size of an output. Ends are not included: each is a batch of
// its own.
func weightOf(o Output) (n int) {
	own := map[string]bool{}
	for _, e := range o.Ends {
		own[taskKey(keyLease, e.Task)] = true
	}
	for _, w := range o.Writes {
		if !own[w.Key] {
			n += len(w.Key) + len(w.Val) + storeCost
		}
	}
	return n
}

// However many tasks become ready, or end, at once: a step of a home fits into one batch,
// and the rest follows.
func TestStepsFitIntoABatch(t *testing.T) {
	const many = 20_000
	begin := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	after := func(d time.Duration) Now {
		return Now{Wall: begin.Wall + d.Milliseconds(), Mono: begin.Mono + d, Boot: begin.Boot + d}
	}
	giant := Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 2 * many}}
	filled := func(mode proto.Mode) *Home {
		h := NewHome(homePeer, 1, Config{HandoffWindow: many})
		h.Begin(begin)
		h.SetQueue(func(*proto.QueueState) {}, begin, "q")
		for i := range many {
			h.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "k", Mode: mode, NotAfter: after(time.Hour).Wall}, begin)
		}
		return h
	}
	// drive takes steps until done reports true, and reports whether all fitted.
	drive := func(t *testing.T, h *Home, out Output, from time.Duration, done func() bool) {
		t.Helper()
		for at := from; ; at += time.Second {
			if n := weightOf(out); n > storeBatch/2 {
				t.Fatalf("a step writes %d bytes", n)
			}
			if done() {
				return
			}
			if at > from+10*time.Minute {
				t.Fatal("what is left over never follows")
			}
			out = h.Tick(after(at))
		}
	}
	leased := func(h *Home) (n int) {
		for _, ts := range h.tasks {
			if ts.leased() {
				n++
			}
		}
		return n
	}
	t.Run("a node with room for all tasks joins", func(t *testing.T) {
		h := filled(0)
		drive(t, h, h.SetNode(giant, begin), 0, func() bool { return leased(h) == many })
	})
	t.Run("the queue goes to another home, and its entries are forgotten", func(t *testing.T) {
		h := filled(0)
		out, err := h.HandOff("q", otherPeer, begin)
		if err != nil {
			t.Fatal(err)
		}
		drive(t, h, out, 0, func() bool { return len(h.tasks) == 0 })
		taken := new(proto.HandedOff)
		for id, entry := range h.transit.byID {
			taken.Moved = append(taken.Moved, &proto.Moved{Task: slices.Clone(id[:]), Generation: entry.gen})
		}
		h.OnHandedOff(otherPeer, taken, begin)
		drive(t, h, Output{}, 24*time.Hour, func() bool { return len(h.transit.byID) == 0 })
	})
	t.Run("an owner of all is silent", func(t *testing.T) {
		h := filled(proto.AtMostOnce)
		for at := time.Duration(0); leased(h) < many; at += time.Second {
			h.SetNode(giant, after(at))
		}
		for _, ts := range h.tasks {
			k := claimOf(ts)
			h.OnStart(ownerPeer, &proto.Start{Claims: []*proto.Claim{k}}, after(time.Minute))
		}
		open := func() (n int) {
			for _, ts := range h.tasks {
				if ts.state != proto.Indeterminate {
					n++
				}
			}
			return n
		}
		drive(t, h, Output{}, time.Minute, func() bool { return open() == 0 })
	})
}

// Large results that arrive at the same time are all stored, though together they exceed
// one batch.
func TestLargeResultsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, 100*time.Millisecond)
		defer w.close()
		const many = 60
		for _, n := range w.nodes {
			n.size = proto.MaxInlineBody
			n.driver.SetNode(Node{Member: dispatch.Member{Peer: testPeer(1), Alive: true, Kinds: []string{"build"}, Slots: many}})
		}
		for i := range many {
			w.nodes[0].add(i, nil)
		}
		w.settled(many, time.Minute)
		for id, n := range w.starts {
			if n != 1 {
				t.Errorf("I6: %s was started %d times", id, n)
			}
		}
	})
}

// slowCustody counts how many ends are written concurrently.
type slowCustody struct {
	*clusterNode
	now, most, ends atomic.Int64
}

func (c *slowCustody) End(ctx context.Context, e End, o *proto.Outcome, also func(*store.Batch)) error {
	n := c.now.Add(1)
	defer c.now.Add(-1)
	for old := c.most.Load(); n > old && !c.most.CompareAndSwap(old, n); old = c.most.Load() {
	}
	time.Sleep(time.Millisecond)
	c.ends.Add(1)
	var b store.Batch
	also(&b)
	return c.store.Apply(ctx, &b)
}

// Any number of tasks that expire at once end with bounded concurrency.
func TestManyEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 1, time.Second)
		defer w.close()
		n, many := w.nodes[0], 5000
		c := &slowCustody{clusterNode: n}
		n.driver.parts.Custody = c
		ctx := t.Context()
		if err := n.driver.CreateQueue(ctx, "q", nil, func(s *proto.QueueState) { s.Paused = true }); err != nil {
			t.Fatal(err)
		}
		for i := range many {
			n.driver.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "build", NotAfter: time.Now().Add(time.Minute).UnixMilli()})
		}
		time.Sleep(5 * time.Minute)
		if got := c.ends.Load(); got != int64(many) {
			t.Errorf("%d of %d tasks ended", got, many)
		}
		if got := c.most.Load(); got > maxParallelBatches {
			t.Errorf("%d ends were written at the same time, want at most %d", got, maxParallelBatches)
		}
	})
}

// A task that waits for its permit and is granted here again in the same step in which that
// lease is refused starts under the new lease: the wait for the old one ends.
func TestARefusedWaitIsOverWhenTheTaskIsGrantedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, time.Second)
		defer w.close()
		n, home, id := w.nodes[1], testPeer(0), testTaskID(1)
		w.mu.Lock()
		w.cut[[2]int{1, 0}] = true // the test answers
		w.mu.Unlock()
		step := func(f func()) {
			t.Helper()
			if err := n.driver.do(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		var now claim // of the lease that waits for its permit
		grant := func(counter uint64) {
			c := &proto.Claim{Task: id[:], EpochBoot: 1, EpochCounter: counter, Token: slices.Repeat([]byte{byte(counter)}, len(Token{})), Generation: 1}
			n.driver.handleMessage(home, proto.TypeGrant, &proto.Grant{
				Claim: c, Queue: "q", LeaseMs: 15_000, Mode: proto.AtMostOnce, Attempt: 1, LeftMs: time.Hour.Milliseconds(),
			}, proto.CodeOK)
		}
		answer := func(code proto.Code) {
			now = n.driver.owner.runs[id].claim
			r := &proto.Ruling{Task: id[:], EpochBoot: now.epoch.Boot, EpochCounter: now.epoch.Counter, Token: now.token[:], BootId: now.boot[:], Code: code, Generation: 1}
			n.driver.handleMessage(home, proto.TypePermit, &proto.Permit{Rulings: []*proto.Ruling{r}}, proto.CodeOK)
		}
		step(func() { grant(1) })
		step(func() { answer(proto.CodeStale); grant(2) })
		step(func() { answer(proto.CodeOK) })
		w.mu.Lock()
		starts := w.starts[id]
		w.mu.Unlock()
		if starts != 1 || now.epoch.Counter != 2 {
			t.Errorf("the task was started %d times, under grant %d; want once, under the second", starts, now.epoch.Counter)
		}
	})
}

// Any number of lanes may be blocked at once because their heads failed: each is written
// only with the end of its head, and the driver keeps running.
func TestManyLanesBlockAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 1, time.Second)
		defer w.close()
		n, many := w.nodes[0], 10_000
		if err := n.driver.CreateQueue(t.Context(), "q", nil, func(s *proto.QueueState) { s.Paused = true }); err != nil {
			t.Fatal(err)
		}
		for i := range many {
			n.driver.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "build", Key: fmt.Sprintf("key %d", i) + strings.Repeat("-", 240), Block: true, NotAfter: time.Now().Add(time.Minute).UnixMilli()})
		}
		w.settled(many, 5*time.Minute)
		blocks := 0
		for p, err := range n.store.All(store.Leases, nil, nil) {
			if err != nil {
				t.Fatal(err)
			}
			if p.Key[0] == keyBlock {
				blocks++
			}
		}
		if blocks != many {
			t.Errorf("%d lanes are blocked on disk, want %d", blocks, many)
		}
	})
}

// A task that ends in the same step in which it arrived from an old home is in custody
// before its end is written, so that its origin is told.
func TestTasksThatEndOnArrival(t *testing.T) {
	for _, how := range []string{"cancelled on its way", "ended by its owner in the same turn"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, 2, time.Second)
				defer w.close()
				n := w.nodes[1]
				given := createdBy("q", peerOf(0), testPeer(0))
				self := testPeer(1)
				given.Home, given.Generation = self[:], 2
				given.Deeds = append(given.Deeds, signDeedAs("q", testPeer(0), Deed{Generation: 2, From: testPeer(0), To: self}))
				if err := n.driver.do(t.Context(), func() { _, o := n.driver.home.Learn(given, n.driver.now()); n.driver.merge(o) }); err != nil {
					t.Fatal(err)
				}
				mover := &storingMover{clusterNode: n}
				n.driver.parts.Mover, n.driver.parts.Custody = mover, mover
				task := Task{ID: testTaskID(1), Sent: testPeer(0), Queue: "q", Kind: "build", NotAfter: time.Now().Add(time.Hour).UnixMilli()}
				k := claim{task: task.ID, epoch: proto.Seq{Boot: 1, Counter: 1}, token: Token{1}, boot: proto.BootID{9}, gen: 2}
				ts := &taskState{task: task, state: proto.Pending, gen: 2}
				if how == "cancelled on its way" {
					ts.cancel = true
				} else {
					ts.state, ts.epoch, ts.owner, ts.token, ts.boot = proto.Running, k.epoch, testPeer(0), k.token, k.boot
				}
				mover.task = task
				if err := n.driver.do(t.Context(), func() {
					n.driver.handleHandoff(testPeer(0), &proto.Handoff{Lease: ts.record()}, task)
					if !ts.cancel {
						n.driver.handleResult(testPeer(0), Unsealed{Task: task.ID, Outcome: &proto.Outcome{
							State: proto.Success, BootId: k.boot[:], LeaseToken: k.token[:], EpochBoot: k.epoch.Boot, EpochCounter: k.epoch.Counter,
						}})
					}
				}); err != nil {
					t.Fatal(err)
				}
				if got := fmt.Sprint(mover.log); got != "[stored with its state ended]" {
					t.Errorf("%s, want it stored with its state, then ended", got)
				}
			})
		})
	}
}

// A storingMover stores the task that is handed over.
type storingMover struct {
	*clusterNode
	task Task
	log  []string
}

func (m *storingMover) Check(proto.PeerID, *proto.Handoff) (Task, error) { return m.task, nil }
func (m *storingMover) HandedOff([]proto.TaskID, proto.PeerID)           {}
func (m *storingMover) Adopt(*proto.Handoff) (func(*store.Batch), func(), error) {
	into := func(b *store.Batch) {
		states := b.Len()
		b.Put(store.Inbox, m.task.ID[:], []byte{1})
		b.After(func() {
			m.log = append(m.log, map[bool]string{true: "stored with its state", false: "stored alone"}[states > 0])
		})
	}
	return into, func() { m.log = append(m.log, "dropped") }, nil
}

func (m *storingMover) End(ctx context.Context, e End, o *proto.Outcome, also func(*store.Batch)) error {
	m.log = append(m.log, "ended")
	return m.clusterNode.End(ctx, e, o, also)
}

// stoppedCustody cannot end tasks because its node stops.
type stoppedCustody struct{ *clusterNode }

func (stoppedCustody) End(context.Context, End, *proto.Outcome, func(*store.Batch)) error {
	return fmt.Errorf("%w: no room for the result", ErrStopped)
}

// A stop of the node while the end of a task waits is no failure. The next start writes the end.
func TestAStopWhileAnEndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 1, time.Second)
		defer w.close()
		n := w.nodes[0]
		if err := n.driver.CreateQueue(t.Context(), "q", nil, func(*proto.QueueState) {}); err != nil {
			t.Fatal(err)
		}
		n.driver.parts.Custody = stoppedCustody{n}
		n.add(0, nil)
		if err := <-n.done; err != nil {
			t.Errorf("the driver ends with %v", err)
		}
		n.done <- nil
		n.end()
		n.start()
		w.members()
		w.settled(1, time.Minute)
	})
}
