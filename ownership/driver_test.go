package ownership

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// A cluster is a set of drivers whose messages are delayed and may be lost.
type cluster struct {
	t     *testing.T
	nodes []*clusterNode

	mu     sync.Mutex
	cut    map[[2]int]bool
	ends   map[proto.TaskID][]string // states, each with its result or else its reason
	starts map[proto.TaskID]int
	refuse func(from proto.PeerID) error // results that do not unseal; nil: none
	bodies testBodies
}

// A clusterNode is one node. Its engine survives a crash.
type clusterNode struct {
	cluster  *cluster
	index    int
	boot     uint64
	engine   *mem.Engine
	store    *store.Store
	tasks    map[proto.TaskID]Task // in custody, as an inbox would keep them
	work     time.Duration
	size     int // extra bytes of each result
	policy   Policy
	driver   *Driver
	stop     context.CancelFunc
	done     chan error
	runs     sync.WaitGroup
	stops    map[proto.TaskID]chan struct{}
	dead     atomic.Bool
	fail     func(point string) error // for its next start
	posts    atomic.Int64             // messages to others
	values   int                      // bytes of a value that its store takes; 0: the default
	offenses []proto.PeerID           // who misbehaved, by mu of the cluster
	forged   []Event                  // its events of what was forged, likewise
}

func testPeer(i int) (p proto.PeerID) { p[0] = byte(i + 1); return p }

func testTaskID(i int) (id proto.TaskID) { id[0], id[1] = byte(i>>8), byte(i)+1; return id }

func newCluster(t *testing.T, n int, work time.Duration) *cluster {
	w := &cluster{t: t, cut: map[[2]int]bool{}, ends: map[proto.TaskID][]string{}, starts: map[proto.TaskID]int{}}
	for i := range n {
		w.nodes = append(w.nodes, &clusterNode{cluster: w, index: i, engine: mem.New(), tasks: map[proto.TaskID]Task{}, work: work})
	}
	for _, n := range w.nodes {
		n.start()
	}
	w.members()
	return w
}

// members tells every driver about all nodes.
func (w *cluster) members() {
	for _, n := range w.nodes {
		if n.dead.Load() {
			continue
		}
		for i := range w.nodes {
			m := dispatch.Member{Peer: testPeer(i), Alive: !w.nodes[i].dead.Load(), Kinds: []string{"build"}, Slots: 4}
			n.driver.SetNode(Node{Member: m})
		}
	}
}

func (n *clusterNode) start() {
	n.boot, n.stops = n.boot+1, map[proto.TaskID]chan struct{}{}
	n.engine = n.engine.Reopen()
	s, err := store.Open(n.engine, store.Config{Clock: clock.Runtime(), SweepEvery: -1, CompactEvery: -1, MaxValue: n.values})
	if err != nil {
		n.cluster.t.Fatal(err)
	}
	n.store = s
	cfg := Settings{
		Config: Config{Random: func(b []byte) { rand.Read(b) }}, Self: testPeer(n.index), Boot: n.boot, BootID: proto.BootID{byte(n.index), byte(n.boot)}, Clock: clock.Runtime(), Fail: n.fail,
		OnMisbehavior: func(p proto.PeerID, _ error) {
			n.cluster.mu.Lock()
			defer n.cluster.mu.Unlock()
			n.offenses = append(n.offenses, p)
		},
		Events: func(all []Event) {
			n.cluster.mu.Lock()
			defer n.cluster.mu.Unlock()
			for _, e := range all {
				if e.Kind == EventForged {
					n.forged = append(n.forged, e)
				}
			}
		},
	}
	n.driver, err = Open(s, Parts{Network: n, Custody: n, Runner: n, Prober: n, Sealer: n, Mover: nopMover{}, Bodies: n}, cfg)
	if err != nil {
		n.cluster.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.stop, n.done = cancel, make(chan error, 1)
	driver, done := n.driver, n.done
	n.dead.Store(false) // from now on others see the new driver
	go func() { done <- driver.Run(ctx) }()
}

// crash stops the node as a power cut does.
func (n *clusterNode) crash() {
	n.dead.Store(true)
	n.engine = n.engine.Reopen()
	n.end()
}

func (n *clusterNode) end() {
	n.dead.Store(true)
	n.stop()
	<-n.done
	n.cluster.mu.Lock()
	for id, c := range n.stops {
		delete(n.stops, id)
		close(c)
	}
	n.cluster.mu.Unlock()
	n.runs.Wait()
	n.store.Close()
}

func (w *cluster) close() {
	for _, n := range w.nodes {
		if !n.dead.Load() {
			n.end()
		}
	}
	time.Sleep(time.Second) // messages in transit
}

// add gives a task to the home of the queue.
func (n *clusterNode) add(i int, change func(*Task)) {
	t := Task{ID: testTaskID(i), Queue: "q", Kind: "build", NotAfter: time.Now().Add(time.Hour).UnixMilli()}
	if change != nil {
		change(&t)
	}
	n.cluster.mu.Lock()
	n.tasks[t.ID] = t
	n.cluster.mu.Unlock()
	n.driver.Add(t)
}

func (n *clusterNode) Behind(proto.PeerID, int) bool { return false }

func (n *clusterNode) Post(p proto.PeerID, t proto.MessageType, m proto.Body) {
	payload, err := proto.Encode(nil, m)
	if err != nil {
		n.cluster.t.Error(err)
		return
	}
	n.posts.Add(1)
	to := n.cluster.nodes[int(p[0])-1]
	from := n.index
	n.cluster.mu.Lock()
	cut := n.cluster.cut[[2]int{from, to.index}]
	n.cluster.mu.Unlock()
	if n.dead.Load() || cut {
		return
	}
	time.AfterFunc(5*time.Millisecond, func() {
		if to.dead.Load() {
			return
		}
		err := to.driver.Receive(testPeer(from), &proto.Message{Type: t, Payload: payload})
		if err != nil && !errors.As(err, new(refusedResult)) {
			n.cluster.t.Error(err)
		}
	})
}

const testBodySize = 2*maxPiece + 1 // a grant does not fit into one record

func (n *clusterNode) Tasks() (all []Task, err error) {
	for _, t := range n.tasks {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b Task) int { return a.ID.Compare(b.ID) })
	return all, nil
}

func (n *clusterNode) Envelope(id proto.TaskID, _ proto.PeerID) (*proto.Envelope, error) {
	return &proto.Envelope{Header: id[:], Body: make([]byte, testBodySize)}, nil
}

func (n *clusterNode) End(ctx context.Context, e End, o *proto.Outcome, also func(*store.Batch)) error {
	var b store.Batch
	also(&b)
	err := n.store.Apply(ctx, &b)
	if err == nil {
		text := string(o.GetBody())
		if o == nil {
			text = cmp.Or(e.Reason, e.Cause.Name())
		}
		n.cluster.mu.Lock()
		delete(n.tasks, e.Task)
		n.cluster.ends[e.Task] = append(n.cluster.ends[e.Task], e.State.Name()+" "+text)
		n.cluster.mu.Unlock()
	}
	return err
}

func (n *clusterNode) Seal(_ proto.PeerID, all []SealRequest) (sealed []*proto.Envelope, err error) {
	for _, x := range all {
		b, err := proto.Encode(nil, x.Outcome)
		if err != nil {
			return nil, err
		}
		sealed = append(sealed, &proto.Envelope{Header: x.Task[:], Body: b})
	}
	return sealed, nil
}

func (n *clusterNode) Unseal(from proto.PeerID, m *proto.Message) (Unsealed, error) {
	e, o := new(proto.Envelope), new(proto.Outcome)
	if err := proto.Decode(m.GetPayload(), e); err != nil {
		return Unsealed{}, err
	}
	n.cluster.mu.Lock()
	refuse := n.cluster.refuse
	n.cluster.mu.Unlock()
	if refuse != nil {
		if err := refuse(from); err != nil {
			return Unsealed{Task: proto.TaskID(e.GetHeader())}, err
		}
	}
	err := proto.Decode(e.GetBody(), o)
	return Unsealed{Task: proto.TaskID(e.GetHeader()), Outcome: o, Absent: o.GetObject() != nil && n.cluster.bodies.absent()}, err
}

func (n *clusterNode) Check(proto.PeerID, *proto.Grant) proto.Code { return 0 }

func (n *clusterNode) Wait(_ proto.PeerID, g *proto.Grant) {
	id, driver, life := proto.TaskID(g.GetClaim().GetTask()), n.driver, n.boot
	stop := make(chan struct{})
	n.cluster.mu.Lock()
	n.stops[id] = stop
	n.cluster.mu.Unlock()
	n.runs.Go(func() {
		if !n.fetch(driver, id, stop) {
			return
		}
		if _, ok := driver.Ready(context.Background(), id, n.policy); !ok {
			return
		}
		n.cluster.mu.Lock()
		n.cluster.starts[id]++
		n.cluster.mu.Unlock()
		select {
		case <-time.After(n.work):
		case <-stop:
			_ = driver.Fail(context.Background(), id, &proto.Released{Cause: proto.CauseStopped, Reason: "told to"})
			return
		}
		body := append(fmt.Appendf(nil, "by %d in life %d", n.index, life), make([]byte, max(n.size-64, 0))...)
		sum := sha256.Sum256(body)
		o := &proto.Outcome{State: proto.Success, Body: body, BodyDigest: sum[:]}
		if n.cluster.bodies.large {
			o.Object = &proto.BodyRef{Name: sum[:], Key: sum[:], Suite: 1}
		}
		_ = driver.Finish(context.Background(), id, o)
	})
}

// Probe reports what the handler did: half of the tasks are done.
func (n *clusterNode) Probe(_ proto.PeerID, g *proto.Grant) {
	id, driver := proto.TaskID(g.GetClaim().GetTask()), n.driver
	if string(g.GetEnvelope().GetHeader()) != string(id[:]) || len(g.GetEnvelope().GetBody()) != testBodySize {
		n.cluster.t.Errorf("the handler is asked about %s with another task", id)
	}
	n.runs.Go(func() {
		body := []byte("asked")
		sum := sha256.Sum256(body)
		_ = driver.Probed(context.Background(), id, wasDone(id), false, &proto.Outcome{State: proto.Success, Body: body, BodyDigest: sum[:]})
	})
}

func (n *clusterNode) Stop(id proto.TaskID, _, _ bool) {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	if c := n.stops[id]; c != nil {
		delete(n.stops, id)
		close(c)
	}
}

// settled waits until n tasks have ended, each with one result (I3, I4).
func (w *cluster) settled(n int, within time.Duration) {
	w.t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		w.mu.Lock()
		ended := len(w.ends)
		w.mu.Unlock()
		if ended == n {
			break
		}
		if time.Since(began) > within {
			w.t.Fatalf("%d of %d tasks ended within %v", ended, n, within)
		}
	}
	for id, ends := range w.ends {
		if len(ends) != 1 {
			w.t.Errorf("I3: %s ended %d times: %q", id, len(ends), ends)
		}
	}
}

// Tasks of a queue run on every node that serves their kind, including its home.
func TestDriversShareAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, 100*time.Millisecond)
		defer w.close()
		for i := range 200 {
			w.nodes[0].add(i, nil)
		}
		w.settled(200, 20*time.Second)
		by := map[string]int{}
		for _, ends := range w.ends {
			by[ends[0]]++
		}
		if len(by) != 3 {
			t.Errorf("results by %v, want all three nodes", by)
		}
		for id, n := range w.starts {
			if n != 1 {
				t.Errorf("I6: %s was started %d times", id, n)
			}
		}
	})
}

// The tasks of a dead owner run elsewhere within lease and scan time, and its late results
// do not count twice (I3, I4, S19).
func TestDriversTakeOverFromADeadOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, 3*time.Second)
		defer w.close()
		for i := range 12 {
			w.nodes[0].add(i, nil)
		}
		time.Sleep(time.Second)
		w.nodes[1].crash()
		w.members()
		w.settled(12, 15*time.Second+5*time.Second+time.Second+6*time.Second)
		w.nodes[1].start()
		w.members()
		w.nodes[0].add(50, nil)
		w.settled(13, 10*time.Second)
	})
}

// An owner that was cut off continues. Its result does not count once another node was
// granted the task (I4), and it forgets the lease.
func TestDriversHealAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, 40*time.Second)
		defer w.close()
		for i := range 6 {
			w.nodes[0].add(i, nil)
		}
		time.Sleep(time.Second)
		w.mu.Lock()
		w.cut[[2]int{0, 2}], w.cut[[2]int{2, 0}] = true, true
		w.mu.Unlock()
		time.Sleep(30 * time.Second)
		w.mu.Lock()
		clear(w.cut)
		w.mu.Unlock()
		w.settled(6, 3*time.Minute)
		time.Sleep(2 * time.Minute)
		if n := len(w.nodes[2].driver.records.results); n != 0 {
			t.Errorf("%d results are still kept by the node that lost its leases", n)
		}
	})
}

// A home that restarts finds its tasks, and the results of owners that continued meanwhile:
// the restart alone runs nothing again (S20).
func TestDriversSurviveTheRestartOfTheHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, 5*time.Second)
		defer w.close()
		for i := range 8 {
			w.nodes[0].add(i, nil)
		}
		time.Sleep(2 * time.Second)
		w.mu.Lock()
		atHome := maps.Clone(w.nodes[0].stops)
		w.mu.Unlock()
		if len(atHome) == 8 {
			t.Fatal("no task runs elsewhere")
		}
		w.nodes[0].crash()
		time.Sleep(10 * time.Second)
		w.nodes[0].start()
		w.members()
		w.settled(8, time.Minute)
		for id, n := range w.starts {
			if n > 1 && atHome[id] == nil {
				t.Errorf("%s was started %d times, though only the home had died", id, n)
			}
		}
	})
}

// A stop releases what waits, and running handlers are told to stop: their tasks run
// elsewhere within a second and spend no attempt (S32).
func TestDriversReleaseLeasesAtAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, 10*time.Second)
		defer w.close()
		for i := range 4 {
			w.nodes[0].add(i, func(t *Task) { t.Options = &proto.TaskOptions{MaxAttempts: 1} })
		}
		time.Sleep(time.Second)
		n := w.nodes[1]
		w.mu.Lock()
		mine := slices.Collect(maps.Keys(n.stops))
		w.mu.Unlock()
		if len(mine) == 0 {
			t.Fatal("the other node has nothing to give back")
		}
		n.driver.Stop()
		for _, id := range mine {
			n.Stop(id, false, false)
		}
		w.nodes[1].dead.Store(true)
		w.members()
		w.nodes[1].dead.Store(false)
		before := time.Now()
		w.settled(4, 13*time.Second)
		t.Logf("all ended %v after the stop", time.Since(before))
		for id, ends := range w.ends {
			if ends[0] != "SUCCESS by 0 in life 1" {
				t.Errorf("%s: %s", id, ends[0])
			}
		}
	})
}

// A nopMover moves nothing: these drivers keep their queue.
type nopMover struct{}

func (nopMover) Check(proto.PeerID, *proto.Handoff) (Task, error) { return Task{}, proto.ErrMalformed }
func (nopMover) Adopt(*proto.Handoff) (func(*store.Batch), func(), error) {
	return nil, nil, proto.ErrMalformed
}
func (nopMover) HandedOff([]proto.TaskID, proto.PeerID) {}

// crashWhileRunning returns two nodes that run eight tasks with a crash policy, and the tasks
// of the second one, which has just crashed.
func crashWhileRunning(t *testing.T, p Policy) (w *cluster, mine []proto.TaskID) {
	t.Helper()
	w = newCluster(t, 2, 5*time.Second)
	for _, n := range w.nodes {
		n.policy = p
	}
	for i := range 8 {
		w.nodes[0].add(i, nil)
	}
	time.Sleep(2 * time.Second)
	n := w.nodes[1]
	w.mu.Lock()
	mine = slices.Collect(maps.Keys(n.stops))
	w.mu.Unlock()
	if len(mine) < 2 {
		t.Fatalf("the other node runs %d tasks, too few to show anything", len(mine))
	}
	n.crash()
	return w, mine
}

// A handler with a probe is asked about tasks that ran when its node died: those that are
// done end so and are not run again, the others are (I7).
func TestDriversProbeAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, mine := crashWhileRunning(t, PolicyProbe)
		defer w.close()
		n := w.nodes[1]
		n.start()
		w.members()
		w.settled(8, time.Minute)
		kinds := map[bool]int{}
		for _, id := range mine {
			kinds[wasDone(id)]++
			asked, starts := w.ends[id][0] == "SUCCESS asked", w.starts[id]
			if done := wasDone(id); asked != done || done && starts != 1 || !done && starts != 2 {
				t.Errorf("task %d was done: %v; it ended as %q after %d starts", id[1], done, w.ends[id], starts)
			}
		}
		if kinds[true] == 0 || kinds[false] == 0 {
			t.Errorf("done and not done: %v, want some of each", kinds)
		}
		for id := range n.driver.records.probes {
			t.Errorf("the grant of %s is still kept", id)
		}
	})
}

// A task that is to be parked ends as a dead letter, and is not run again, if the node that
// died while it ran is back at once (I7). If that node is dead or silent, the task is granted
// to another one, whatever its policy: the home does not know that.
func TestDriversParkAfterACrash(t *testing.T) {
	for _, tt := range []struct {
		name         string
		back, silent bool
		end          string
		starts       int
	}{
		{"back at once", true, false, "DEAD_LETTER crashed_parked", 1},
		{"dead", false, false, "SUCCESS by 0 ", 2},
		{"silent", false, true, "SUCCESS by 0 ", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, mine := crashWhileRunning(t, PolicyPark)
				defer w.close()
				if tt.back {
					w.nodes[1].start()
				}
				if !tt.silent {
					w.members()
				}
				w.settled(8, time.Minute)
				for _, id := range mine {
					if end, starts := w.ends[id][0], w.starts[id]; !strings.HasPrefix(end, tt.end) || starts != tt.starts {
						t.Errorf("task %d ended as %q after %d starts, want %q after %d", id[1], end, starts, tt.end, tt.starts)
					}
				}
			})
		})
	}
}

func wasDone(id proto.TaskID) bool { return id[1]%4 < 2 }
