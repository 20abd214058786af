package node

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// TestQueueHours verifies I1, I3, I4, I5, I6, I9 and I20 for every task of a queue of
// ten complete nodes over real libp2p in virtual time, with partitions, one-way links,
// packet loss, crashes of nodes including the home, and handoffs. It runs two minutes of
// that, or BALEFIRE_QUEUE_HOURS hours, each with a mesh of its own; each of these faults
// must happen within an hour.
func TestQueueHours(t *testing.T) {
	hours, err := strconv.Atoi(os.Getenv("BALEFIRE_QUEUE_HOURS"))
	if err != nil {
		synctest.Test(t, func(t *testing.T) { queueHour(t, 0, 2*time.Minute, newCoverage()) })
		return
	}
	all := newCoverage()
	t.Run("all", func(t *testing.T) {
		for h := range hours {
			t.Run(fmt.Sprint("hour ", h+1), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { queueHour(t, uint64(h), time.Hour, all) })
			})
		}
	})
	all.check(t, hours, "partition 1|4", "partition 2|3", "partition 2|2", "a link goes one way", "a node receives but cannot send", "a node crashes",
		"the home crashes", "packets are lost", "the home moves", "a task is started again", "two nodes run a task at once", "a result comes too late")
}

// A hoursTest is ten nodes that serve one queue.
type hoursTest struct {
	*simMesh
	rng      *rand.Rand
	coverage *coverage

	mu    sync.Mutex
	tasks []hoursTask
	homes map[uint64]string // home of the queue in each generation
	done  map[proto.TaskID]*hoursRuns
}

type hoursTask struct {
	ref  string
	id   proto.TaskID
	from int
}

// hoursRuns records the runs of one task.
type hoursRuns struct {
	starts  int
	going   map[int]bool         // nodes that run it now
	granted map[proto.Seq][2]int // node and life that started it, by epoch
	results map[string]bool      // results of its runs
}

const hoursNodes = 10

func queueHour(t *testing.T, seed uint64, long time.Duration, all *coverage) {
	s := &hoursTest{
		simMesh: newSimMeshWith(t, hoursNodes, seed, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50, Seed: seed}, quietMesh),
		rng:     rand.New(rand.NewPCG(seed, 5)), coverage: all, homes: map[uint64]string{}, done: map[proto.TaskID]*hoursRuns{},
	}
	defer s.close()
	for _, n := range s.nodes {
		n.beforeRun = func(x *Node) { s.serve(x, n) }
		n.beforeRun(n.node)
	}
	if _, err := s.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Home: "here", Strategy: new("least_loaded")}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	users := rand.New(rand.NewPCG(s.rng.Uint64(), 6))
	s.users.Go(func() { s.submitTasks(ctx, users) })
	for began := time.Now(); time.Since(began) < long; {
		for range 1 + s.rng.IntN(8) {
			time.Sleep(10 * time.Second)
			s.checkHome()
		}
		s.injectQueueFault()
	}
	cancel()
	s.users.Wait()
	s.Heal()
	s.SetLoss(0)
	for _, n := range s.nodes {
		n.start()
	}
	s.checkAll()
}

func (h *hoursTest) serve(n *Node, at *simNode) {
	spec := inbox.Spec{Kind: "build", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: hoursHandler{h, at.place, at.life}}
	if err := n.inbox.Register(spec); err != nil {
		h.t.Error(err)
	}
	n.gossip.Describe()
}

// A hoursHandler is the handler on one node in one of its lives.
type hoursHandler struct {
	test        *hoursTest
	place, life int
}

// Run runs for the duration in the body.
func (h hoursHandler) Run(ctx context.Context, r *handler.Run) *handler.Result {
	var once bool
	var ms int
	body, err := io.ReadAll(r.Body)
	if _, serr := fmt.Sscan(string(body), &once, &ms); err != nil || serr != nil {
		return &handler.Result{Outcome: handler.Fail, Reason: "the body cannot be decoded"}
	}
	h.begin(r, once)
	defer h.end(r)
	select {
	case <-ctx.Done():
		return &handler.Result{Outcome: handler.Cancelled, Reason: context.Cause(ctx).Error()}
	case <-time.After(time.Duration(ms) * time.Millisecond):
	}
	out := fmt.Sprintf("%s at n%d under %d.%d", r.ID, h.place, r.Epoch.Boot, r.Epoch.Counter)
	h.test.mu.Lock()
	defer h.test.mu.Unlock()
	h.test.done[r.ID].results[out] = true
	return &handler.Result{Outcome: handler.Success, Output: []byte(out)}
}

// begin records a start and checks that it is allowed.
func (h hoursHandler) begin(r *handler.Run, once bool) {
	s := h.test
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.done[r.ID]
	if d == nil {
		d = &hoursRuns{going: map[int]bool{}, granted: map[proto.Seq][2]int{}, results: map[string]bool{}}
		s.done[r.ID] = d
	}
	if d.starts++; d.starts > 1 {
		s.coverage.add("a task is started again")
		if once {
			s.t.Errorf("I6: %s was started %d times, but may start only once", r.ID, d.starts)
		}
	}
	who := [2]int{h.place, h.life}
	if old, ok := d.granted[r.Epoch]; ok && old != who {
		s.t.Errorf("I5: %s was started with epoch %v by %v and by %v (node, life)", r.ID, r.Epoch, old, who)
	}
	d.granted[r.Epoch] = who
	if len(d.going) > 0 && !d.going[h.place] {
		s.coverage.add("two nodes run a task at once")
	}
	d.going[h.place] = true
}

func (h hoursHandler) end(r *handler.Run) {
	h.test.mu.Lock()
	defer h.test.mu.Unlock()
	delete(h.test.done[r.ID].going, h.place)
}

// checkHome returns the home of the queue, or nil while it is down, and checks that each
// generation had only one.
func (h *hoursTest) checkHome() (home *simNode) {
	var newest uint64
	for _, n := range h.nodes {
		x := n.get()
		if x == nil {
			continue
		}
		for _, q := range x.Queues.OwnStates() {
			g := q.GetGeneration()
			if was, ok := h.homes[g]; ok && was != n.name {
				h.t.Errorf("I3: %s and %s are the home of the queue in generation %d", was, n.name, g)
			}
			h.homes[g] = n.name
			if g >= newest {
				home, newest = n, g
			}
		}
	}
	return home
}

// injectQueueFault changes one property of the simulation.
func (h *hoursTest) injectQueueFault() {
	switch kind, p := h.nextFault(h.rng, 14); kind {
	case 10:
		if home := h.checkHome(); home != nil {
			h.coverage.add("the home crashes")
			home.crash()
		}
	case 12, 13:
		h.handOff()
	default:
		h.injectFaultOf(kind, p, h.rng, h.coverage)
	}
}

// nextFault starts most of the nodes that are down, and chooses a fault and the nodes that it
// hits.
func (sm *simMesh) nextFault(rng *rand.Rand, kinds int) (kind int, nodes []int) {
	for _, n := range sm.nodes {
		if n.get() == nil && rng.IntN(10) < 7 {
			n.start()
		}
	}
	nodes = rng.Perm(len(sm.nodes))
	return rng.IntN(kinds), nodes
}

// injectFaultOf changes one property of the simulation; the partitions are of fifths of the
// nodes.
func (sm *simMesh) injectFaultOf(kind int, p []int, rng *rand.Rand, c *coverage) {
	fifth := len(p) / 5
	switch kind {
	case 0, 1, 2:
		sm.Heal()
	case 3:
		c.add("partition 1|4")
		sm.Partition(p[:fifth], p[fifth:])
	case 4:
		c.add("partition 2|3")
		sm.Partition(p[:2*fifth], p[2*fifth:])
	case 5:
		c.add("partition 2|2")
		sm.Partition(p[:2*fifth], p[2*fifth:4*fifth], p[4*fifth:])
	case 6:
		c.add("a link goes one way")
		sm.Cut(p[0], p[1])
	case 7:
		c.add("a node receives but cannot send")
		for _, to := range p[1:] {
			sm.Cut(p[0], to)
		}
	case 8, 9:
		c.add("a node crashes")
		sm.nodes[p[0]].crash()
	case 11:
		c.add("packets are lost")
		sm.SetLoss([]float64{0.02, 0.1}[rng.IntN(2)])
	}
}

// handOff moves the queue to another home, whatever the state of the network.
func (h *hoursTest) handOff() {
	home := h.checkHome()
	if home == nil {
		return
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	if _, err := home.get().Queues.HandOff(ctx, "build", ""); err == nil {
		h.coverage.add("the home moves")
	}
}

// submitTasks submits tasks at running nodes.
func (h *hoursTest) submitTasks(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(1000+rng.IntN(8000)) * time.Millisecond):
		}
		at := rng.IntN(hoursNodes)
		n := h.nodes[at].get()
		if n == nil {
			continue
		}
		once, ms := rng.IntN(4) == 0, 100+rng.IntN(1+rng.IntN(40_000))
		if rng.IntN(8) == 0 {
			ms += 60_000 // longer than a lease without renewals
		}
		r := wire.Request{Target: "queue:build", Kind: "build", Body: fmt.Appendf(nil, "%v %d", once, ms)}
		if once {
			r.Mode = proto.AtMostOnce.Name()
		}
		got, err := n.Submit(ctx, r)
		if err != nil {
			continue // the node crashed, or does not know the queue yet
		}
		id, err := proto.ParseTaskID(got.ID)
		if err != nil {
			h.t.Error(err)
		}
		h.mu.Lock()
		h.tasks = append(h.tasks, hoursTask{got.ID, id, at})
		h.mu.Unlock()
	}
}

// uncertainEnds are the causes of ends after which nobody knows whether the task had its effect,
// or with which its owners were lost too often.
var uncertainEnds = []string{
	proto.TaskAbandonedOften.Name(), proto.TaskAbandonedOnce.Name(), proto.TaskOwnerLostOnce.Name(), proto.TaskHomeRestoredOnce.Name(),
	proto.TaskStoppedOnce.Name(), proto.TaskCrashedParked.Name(), proto.TaskForgottenOnce.Name(),
}

// checkAll waits until every task has ended at its origin, and checks the end against
// the runs.
func (h *hoursTest) checkAll() {
	h.t.Helper()
	counts := map[string]int{}
	deadline := time.Now().Add(2 * time.Hour)
	for _, x := range h.tasks {
		n := h.nodes[x.from].get()
		ctx, cancel := context.WithDeadline(h.t.Context(), deadline)
		task, err := n.Views.Wait(ctx, x.ref)
		cancel()
		if err != nil {
			b, _ := n.Explainer.Why(h.t.Context(), x.ref)
			h.t.Fatalf("I20: %s is %s (%s): %v; at its origin: %+v; homes %v; runs %+v", x.ref, task.State, task.Reason, err, b, h.homes, h.done[x.id])
		}
		counts[task.State]++
		if task.State == "SUCCESS" {
			h.checkResult(n, x)
		} else if h.coverage.add("a task ends without success"); !slices.Contains(uncertainEnds, task.Cause) {
			h.t.Errorf("%s ended %s: %s %s", x.ref, task.State, task.Cause, task.Reason)
		}
	}
	h.checkHome()
	h.t.Logf("%d tasks: %v; %d homes; packets %+v", len(h.tasks), counts, len(h.homes), h.Stats())
	if counts["SUCCESS"]*10 < len(h.tasks)*9 {
		h.t.Errorf("only %d of %d tasks succeeded", counts["SUCCESS"], len(h.tasks))
	}
}

// checkResult checks that the result of a task is that of one of its runs.
func (h *hoursTest) checkResult(n *Node, x hoursTask) {
	h.t.Helper()
	body, _, err := n.Views.Result(h.t.Context(), x.ref)
	if err != nil {
		h.t.Fatal(err)
	}
	defer body.Close()
	out, err := io.ReadAll(body)
	h.mu.Lock()
	defer h.mu.Unlock()
	made := h.done[x.id].results
	if err != nil || !made[string(out)] {
		h.t.Errorf("I9: %s has the result %q, which none of its runs %v produced: %v", x.ref, out, made, err)
	}
	if len(made) > 1 {
		h.coverage.add("a result comes too late")
	}
}

// A coverage counts the events of all hours.
type coverage struct {
	mu     sync.Mutex
	counts map[string]int
}

func newCoverage() *coverage { return &coverage{counts: map[string]int{}} }

func (c *coverage) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

// check checks that these events happened, most of them once per hour.
func (c *coverage) check(t *testing.T, hours int, events ...string) {
	t.Helper()
	t.Logf("counted: %d hours: %v", hours, c.counts)
	for _, what := range events {
		if c.counts[what] < hours {
			t.Errorf("in %d hours, %q happened %d times: too few to prove anything", hours, what, c.counts[what])
		}
	}
}
