package node

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// TestQueueHours holds I1, I3, I4, I6, I9 and I20 for every task of a queue of ten
// whole nodes over real libp2p, in virtual time: halves that do not see each other,
// one-way links, loss, and nodes that crash, its home among them. It runs a few
// minutes of that, or BALEFIRE_QUEUE_HOURS hours, each with a mesh of its own.
func TestQueueHours(t *testing.T) {
	hours, long := 1, 5*time.Minute
	if n, err := strconv.Atoi(os.Getenv("BALEFIRE_QUEUE_HOURS")); err == nil {
		hours, long = n, time.Hour
	} else if testing.Short() {
		long = time.Minute
	}
	for h := range hours {
		t.Run(fmt.Sprint("hour ", h+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { queueHour(t, uint64(h), long) })
		})
	}
}

// A shop is ten nodes that serve one queue.
type shop struct {
	*world
	rng *rand.Rand

	mu    sync.Mutex
	tasks []shopTask
	runs  map[proto.TaskID]map[string]bool // the results that its runs have made
	once  map[proto.TaskID]int             // starts of what may be started once
}

type shopTask struct {
	ref  string
	id   proto.TaskID
	from int
}

const shopNodes = 10

func queueHour(t *testing.T, seed uint64, long time.Duration) {
	s := &shop{
		world: newWorldWith(t, shopNodes, seed, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50, Seed: seed}, noCircuits),
		rng:   rand.New(rand.NewPCG(seed, 5)), runs: map[proto.TaskID]map[string]bool{}, once: map[proto.TaskID]int{},
	}
	defer s.close()
	for _, n := range s.nodes {
		place := n.place
		n.ready = func(x *Node) { s.serve(x, place) }
		n.ready(n.node)
	}
	if _, err := s.nodes[0].node.SetQueue(t.Context(), "build", QueueSettings{Home: "here", Strategy: new("least_loaded")}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	s.users.Go(func() { s.use(ctx) })
	for began := time.Now(); time.Since(began) < long; {
		time.Sleep(time.Duration(10+s.rng.IntN(40)) * time.Second)
		s.strike()
	}
	cancel()
	s.users.Wait()
	s.Heal()
	s.SetLoss(0)
	for _, n := range s.nodes {
		n.start()
	}
	s.balance()
}

func (s *shop) serve(n *Node, place int) {
	spec := inbox.Spec{Kind: "build", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: shopHand{s, place}}
	if err := n.inbox.Register(spec); err != nil {
		s.t.Error(err)
	}
	n.gossip.Describe()
}

// A shopHand is the handler on one node.
type shopHand struct {
	shop  *shop
	place int
}

// Run works for as long as the body says.
func (h shopHand) Run(ctx context.Context, r *inbox.Run) *inbox.Ran {
	var once bool
	var ms int
	body, err := io.ReadAll(r.Body)
	if _, serr := fmt.Sscan(string(body), &once, &ms); err != nil || serr != nil {
		return &inbox.Ran{End: inbox.Fail, Reason: "the body cannot be read"}
	}
	out := fmt.Sprintf("%s at n%d under %d.%d", r.ID, h.place, r.Epoch.Boot, r.Epoch.Counter)
	s := h.shop
	s.mu.Lock()
	if once {
		if s.once[r.ID]++; s.once[r.ID] > 1 {
			s.t.Errorf("I6: %s is started %d times, and may be once", r.ID, s.once[r.ID])
		}
	}
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return &inbox.Ran{End: inbox.Stopped, Reason: context.Cause(ctx).Error()}
	case <-time.After(time.Duration(ms) * time.Millisecond):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[r.ID] == nil {
		s.runs[r.ID] = map[string]bool{}
	}
	s.runs[r.ID][out] = true
	return &inbox.Ran{End: inbox.Success, Output: []byte(out)}
}

// use submits tasks at nodes that are up.
func (s *shop) use(ctx context.Context) {
	rng := rand.New(rand.NewPCG(s.rng.Uint64(), 6))
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(1000+rng.IntN(8000)) * time.Millisecond):
		}
		at := rng.IntN(shopNodes)
		n := s.nodes[at].get()
		if n == nil {
			continue
		}
		once := rng.IntN(4) == 0
		r := Request{Target: "queue:build", Kind: "build", Body: fmt.Appendf(nil, "%v %d", once, 100+rng.IntN(1+rng.IntN(40_000)))}
		if once {
			r.Mode = proto.Mode_MODE_AT_MOST_ONCE
		}
		got, err := n.Submit(ctx, r)
		if err != nil {
			continue // it crashed meanwhile, or does not know the queue yet
		}
		id, err := proto.ParseTaskID(got.ID)
		if err != nil {
			s.t.Error(err)
		}
		s.mu.Lock()
		s.tasks = append(s.tasks, shopTask{got.ID, id, at})
		s.mu.Unlock()
	}
}

// strike changes one thing about the world: the partitions are 1|4, 2|3 and 2|2 of
// five pairs of nodes.
func (s *shop) strike() {
	for _, n := range s.nodes {
		if n.get() == nil && s.rng.IntN(10) < 7 {
			n.start()
		}
	}
	p := s.rng.Perm(shopNodes)
	switch s.rng.IntN(12) {
	case 0, 1, 2:
		s.Heal()
	case 3:
		s.Partition(p[:2], p[2:])
	case 4:
		s.Partition(p[:4], p[4:])
	case 5:
		s.Partition(p[:4], p[4:8], p[8:])
	case 6:
		s.Cut(p[0], p[1])
	case 7:
		for _, to := range p[1:] { // it hears, and is not heard
			s.Cut(p[0], to)
		}
	case 8, 9:
		s.nodes[p[0]].crash()
	case 10:
		s.nodes[0].crash()
	case 11:
		s.SetLoss([]float64{0, 0.02, 0.1}[s.rng.IntN(3)])
	}
}

// balance waits until every task has ended where it was submitted, and holds the end
// against the runs.
func (s *shop) balance() {
	s.t.Helper()
	counts := map[string]int{}
	deadline := time.Now().Add(2 * time.Hour)
	for _, x := range s.tasks {
		n := s.nodes[x.from].get()
		ctx, cancel := context.WithDeadline(s.t.Context(), deadline)
		task, err := n.Wait(ctx, x.ref)
		cancel()
		if err != nil {
			b, _ := s.nodes[0].get().Why(s.t.Context(), x.ref)
			s.t.Fatalf("I20: %s is %s (%s): %v; at its home: %+v", x.ref, task.State, task.Reason, err, b)
		}
		counts[task.State]++
		if task.State != "SUCCESS" {
			if !strings.Contains(task.Reason, "indeterminate") && !strings.Contains(task.Reason, "abandoned") {
				s.t.Errorf("%s ended %s: %s", x.ref, task.State, task.Reason)
			}
			continue
		}
		body, _, err := n.Result(s.t.Context(), x.ref)
		if err != nil {
			s.t.Fatal(err)
		}
		out, err := io.ReadAll(body)
		body.Close()
		if err != nil || !s.runs[x.id][string(out)] {
			s.t.Errorf("I9: %s has the result %q of none of its runs %v: %v", x.ref, out, s.runs[x.id], err)
		}
	}
	s.t.Logf("%d tasks: %v", len(s.tasks), counts)
	if counts["SUCCESS"]*10 < len(s.tasks)*9 {
		s.t.Errorf("only %d of %d tasks succeeded", counts["SUCCESS"], len(s.tasks))
	}
}
