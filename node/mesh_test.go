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
	hours, err := strconv.Atoi(os.Getenv("BALEFIRE_VIRTUAL_HOURS"))
	if err != nil {
		synctest.Test(t, func(t *testing.T) { virtualHour(t, 0, 0.05, 15*time.Minute, 100) })
		return
	}
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
func (w *simMesh) injectFault(loss float64) {
	for _, s := range w.nodes {
		if s.get() == nil && w.rng.IntN(10) < 7 {
			s.start()
		}
	}
	i := w.rng.IntN(len(w.nodes))
	j := (i + 1 + w.rng.IntN(len(w.nodes)-1)) % len(w.nodes)
	switch w.rng.IntN(12) {
	case 0, 1, 2, 3:
		w.Heal()
	case 4:
		w.Partition([]int{i}, []int{j, 3 - i - j})
	case 5:
		w.Cut(i, j)
	case 6:
		w.Unplug(i)
	case 7, 8:
		w.nodes[i].crash()
	case 9:
		w.nodes[i].halt()
	case 10:
		w.SetLoss(loss)
	case 11:
		w.SetLatency(time.Duration(1+w.rng.IntN(300)) * time.Millisecond)
	}
}

// settle ends all faults and waits until every task has ended without intervention
// (I20).
func (w *simMesh) settle() {
	w.t.Helper()
	w.Heal()
	w.SetLoss(0)
	w.SetLatency(20 * time.Millisecond)
	for _, s := range w.nodes {
		s.start()
	}
	for range 60 {
		if w.checker.countOpen(w.nodes) == 0 {
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
func (w *simMesh) replay(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
		}
		if ids := w.checker.replayable(); len(ids) > 0 {
			w.replayOne(ids[rng.IntN(len(ids))])
		}
	}
}

// replayAll delivers every captured frame again, to nodes that have forgotten what they
// may forget, and checks that it has no effect.
func (w *simMesh) replayAll() {
	for _, s := range w.nodes {
		s.halt()
		s.start()
	}
	before := w.checker.startCount()
	for _, id := range w.checker.replayable() {
		w.replayOne(id)
	}
	time.Sleep(10 * time.Minute)
	if after := w.checker.startCount(); after != before {
		w.t.Errorf("I12: %d replayed frames were run", after-before)
	}
	if open := w.checker.countOpen(w.nodes); open > 0 {
		w.t.Errorf("I12: %d tasks are open again after a replay", open)
	}
}

// replayOne delivers a captured frame to the target as its origin would.
func (w *simMesh) replayOne(id proto.TaskID) {
	m, from, to := w.checker.frame(id)
	home, target := w.nodes[from].get(), w.nodes[to].get()
	if home == nil || target == nil {
		return
	}
	_, _ = target.Receive(context.Background(), home.keys.Peer(), []*proto.Message{m}) // the node may be dying
}
