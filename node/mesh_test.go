package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// meshLog enables the logs of all simulated nodes; set it to investigate a failure.
const meshLog = false

// TestVirtualHours verifies I1, I2, I3, I6, I8, I9, I10, I11, I12, I15 and I20 for every
// task of a mesh with lossy, cut, one-way and slow links and with nodes that crash and
// stop. It runs a quarter of an hour of that, or BALEFIRE_VIRTUAL_HOURS hours, and each
// run ends with all checks of the checker.
func TestVirtualHours(t *testing.T) {
	t.Parallel()
	hours, err := strconv.Atoi(os.Getenv("BALEFIRE_VIRTUAL_HOURS"))
	if err != nil {
		synctest.Test(t, func(t *testing.T) { virtualHour(t, 0, 0.05, 15*time.Minute, 100) })
		return
	}
	t.Logf("counted: %d hours", hours)
	for h := range hours {
		loss := []float64{0, 0.05, 0.20}[h%3]
		t.Run(fmt.Sprintf("hour %d with %.0f%% loss", h+1, loss*100), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { virtualHour(t, uint64(h), loss, time.Hour, 500) })
		})
	}
}

func virtualHour(t *testing.T, seed uint64, loss float64, long time.Duration, enough int) {
	w := newSimMeshWith(t, 3, seed, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50, Seed: seed}, noCircuits)
	defer w.close()
	ctx, cancel := context.WithCancel(t.Context())
	for _, s := range w.nodes {
		w.users.Go(func() { s.submitTasks(ctx, rand.New(rand.NewPCG(seed, uint64(s.place)))) })
	}
	w.users.Go(func() { w.replay(ctx, rand.New(rand.NewPCG(seed, 77))) })
	began := time.Now()
	for time.Since(began) < long {
		time.Sleep(time.Duration(10+w.rng.IntN(50)) * time.Second)
		w.injectFault(loss)
		w.checker.countOpen(w.nodes)
	}
	cancel()
	w.users.Wait()
	w.settle()
	w.replayAll()
	counts := w.checker.checkAll(w.nodes)
	t.Logf("%v; %d starts; packets %+v; it took %v to settle", counts, w.checker.starts, w.Stats(), time.Since(began)-long)
	if counts["SUCCESS"] < enough {
		t.Errorf("only %d tasks succeeded: too few to prove anything", counts["SUCCESS"])
	}
}

// injectFault changes one property of the simulation.
func (sm *simMesh) injectFault(loss float64) {
	for _, s := range sm.nodes {
		if s.get() == nil && sm.rng.IntN(10) < 7 {
			s.start()
		}
	}
	i := sm.rng.IntN(len(sm.nodes))
	j := (i + 1 + sm.rng.IntN(len(sm.nodes)-1)) % len(sm.nodes)
	switch sm.rng.IntN(12) {
	case 0, 1, 2, 3:
		sm.Heal()
	case 4:
		sm.Partition([]int{i}, []int{j, 3 - i - j})
	case 5:
		sm.Cut(i, j)
	case 6:
		sm.Unplug(i)
	case 7, 8:
		sm.nodes[i].crash()
	case 9:
		sm.nodes[i].halt()
	case 10:
		sm.SetLoss(loss)
	case 11:
		sm.SetLatency(time.Duration(1+sm.rng.IntN(300)) * time.Millisecond)
	}
}

// settle ends all faults and waits until every task has ended without intervention
// (I20).
func (sm *simMesh) settle() {
	sm.t.Helper()
	sm.Heal()
	sm.SetLoss(0)
	sm.SetLatency(20 * time.Millisecond)
	for _, s := range sm.nodes {
		s.start()
	}
	for range 60 {
		if sm.checker.countOpen(sm.nodes) == 0 {
			break
		}
		time.Sleep(time.Minute)
	}
	time.Sleep(time.Minute) // for the last marks
}

// submitTasks submits tasks as people and programs do, and cancels some.
func (s *simNode) submitTasks(ctx context.Context, rng *rand.Rand) {
	w := s.mesh
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(500+rng.IntN(6000)) * time.Millisecond):
		}
		n := s.get()
		if n == nil {
			continue
		}
		target := (s.place + 1 + rng.IntN(len(w.nodes)-1)) % len(w.nodes)
		if rng.IntN(20) == 0 {
			target = s.place
		}
		p := newPlan(rng, i)
		got, err := n.Submit(ctx, p.request(w.nodes[target].name))
		w.checker.submitted(s.place, target, p, got, err)
		if err != nil {
			continue
		}
		if rng.IntN(10) == 0 {
			w.checker.capture(n, got.ID)
		}
		if rng.IntN(30) == 0 {
			_, _ = n.Cancel(ctx, got.ID, rng.IntN(2) == 0, "changed my mind") // it may have ended
		}
	}
}

// replay delivers frames again that were sent before, at any later time (I12).
func (sm *simMesh) replay(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
		}
		if ids := sm.checker.replayable(); len(ids) > 0 {
			sm.replayOne(ids[rng.IntN(len(ids))])
		}
	}
}

// replayAll delivers every captured frame again, to nodes that have forgotten what they
// may forget, and checks that it has no effect.
func (sm *simMesh) replayAll() {
	for _, s := range sm.nodes {
		s.halt()
		s.start()
	}
	before := sm.checker.startCount()
	for _, id := range sm.checker.replayable() {
		sm.replayOne(id)
	}
	time.Sleep(10 * time.Minute)
	if after := sm.checker.startCount(); after != before {
		sm.t.Errorf("I12: %d replayed frames were run", after-before)
	}
	if open := sm.checker.countOpen(sm.nodes); open > 0 {
		sm.t.Errorf("I12: %d tasks are open again after a replay", open)
	}
}

// replayOne delivers a captured frame to the target as its origin would.
func (sm *simMesh) replayOne(id proto.TaskID) {
	m, from, to := sm.checker.frame(id)
	home, target := sm.nodes[from].get(), sm.nodes[to].get()
	if home == nil || target == nil {
		return
	}
	_, _ = receiver{target}.Receive(context.Background(), home.keys.Peer(), []*proto.Message{m}) // the node may be dying
}
