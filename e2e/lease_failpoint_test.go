//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// leasePoints are the moments at which a node of a shared queue can be killed: before and
// after every commit of the ownership subsystem, with the node that passes them and the
// function that makes it do so.
var leasePoints = []struct {
	names []string
	at    func(*trio) *machine
	do    func(t *testing.T, x *trio, point string)
}{
	{[]string{ownership.PointGrant, ownership.PointGranted, ownership.PointEnd, ownership.PointEnded, ownership.PointReplied}, (*trio).home, dieWorking},
	{[]string{ownership.PointReceive, ownership.PointReceived, ownership.PointFinish, ownership.PointFinished}, (*trio).worker, dieWorking},
	{[]string{ownership.PointPermit, ownership.PointPermitted}, (*trio).home, dieOnce},
	{[]string{ownership.PointStart, ownership.PointStarted, ownership.PointRelease, ownership.PointReleased}, (*trio).worker, dieGivingBack},
	{[]string{ownership.PointTakeBack, ownership.PointTakenBack}, (*trio).home, dieGivingBack},
	{[]string{ownership.PointYield, ownership.PointYielded, ownership.PointMove, ownership.PointMoved, ownership.PointLetGo, ownership.PointGone}, (*trio).home, dieMoving},
	{[]string{ownership.PointAdmit, ownership.PointAdmitted}, (*trio).other, dieMoving},
	{[]string{ownership.PointSeize, ownership.PointSeized}, (*trio).admin, dieSeizing},
}

// A trio is a queue with its home, a node that may become the home, and one worker.
type trio struct {
	fleet
	submitters [2]*submitter
}

func (x *trio) worker() *machine { return x.nodes[firstWorker] }
func (x *trio) admin() *machine  { return x.nodes[0] }

// home returns the current home of the queue.
func (x *trio) home() *machine {
	for _, m := range x.nodes[:firstWorker] {
		if q, err := m.Queue(context.Background(), "build"); err == nil && q.Here {
			return m
		}
	}
	x.admin().t.Fatal("no node is the home of the queue")
	return nil
}

// other returns the one of the two that is not the home.
func (x *trio) other() *machine {
	if x.home() == x.nodes[0] {
		return x.nodes[1]
	}
	return x.nodes[0]
}

// submitterExcept returns the node at which tasks are submitted while m dies.
func (x *trio) submitterExcept(m *machine) *submitter {
	if m == x.nodes[1] {
		return x.submitters[0]
	}
	return x.submitters[1]
}

func newTrio(t *testing.T, engine string) *trio {
	t.Helper()
	x := &trio{}
	for i, name := range []string{"home", "submitter", "worker"} {
		c := config{engine: engine, dir: filepath.Join(shortDir(t), name), net: "  mdns: off\n"}
		if i >= firstWorker {
			c.kinds = notingHandler("build", c.dir, name, "") + notingHandler("weak", c.dir, name, "test $BALEFIRE_ATTEMPT -gt 1 || exit 75; ")
		}
		c.kinds += "mesh:\n  suspect_recover: 100ms\n  dead_recover: 100ms\n"
		m := newMachine(t, name, i == 0, c)
		if i > 0 {
			m.join(x.nodes[0])
		}
		m.start()
		x.nodes = append(x.nodes, m)
	}
	x.submitters = [2]*submitter{newSubmitter(x.nodes[0]), newSubmitter(x.nodes[1])}
	if _, err := x.admin().SetQueue(t.Context(), "build", wire.QueueSettings{Home: "here"}); err != nil {
		t.Fatal(err)
	}
	x.nodes[1].until("it knows the queue", func() bool {
		_, err := x.nodes[1].Queue(context.Background(), "build")
		return err == nil
	})
	return x
}

// TestKillAtPointsOfLeases checks I3, I4, I5, I6, I7, I10 and I14 at every step of the
// ownership subsystem between two commits: the process dies there and restarts without
// intervention, and each acknowledged task ends once, with a result of its newest lease. The
// short form visits each point once and alternates between the stores.
func TestKillAtPointsOfLeases(t *testing.T) {
	for e, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			x := newTrio(t, engine)
			for _, group := range leasePoints {
				for i, point := range group.names {
					if !long && i%len(engines) != e {
						continue
					}
					t.Run(strings.ReplaceAll(point, "/", " "), func(t *testing.T) {
						m := group.at(x)
						m.kill()
						m.start("BALEFIRE_FAILPOINT=" + point)
						known := x.submitted()
						group.do(t, x, point)
						x.waitIdle(t)
						x.started(t, known, m == x.worker())
					})
				}
			}
			ends := wait(t, x.submitters[:])
			x.checkRuns(t, ends)
			if n := ends.states()["SUCCESS"]; n < len(ends)-x.submitters[0].atMostOnce.count()-x.submitters[1].atMostOnce.count() {
				t.Errorf("%d of %d tasks succeeded", n, len(ends))
			}
		})
	}
}

// waitFailpoint waits until m has died at its failpoint, and restarts it.
func (m *machine) waitFailpoint() {
	m.t.Helper()
	m.waitDeath()
	m.start()
}

// waitDeath waits until the node has died at its failpoint.
func (m *machine) waitDeath() {
	m.t.Helper()
	m.until("it dies at the failpoint", func() bool { return !m.alive() })
	if s, ok := m.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		m.t.Errorf("%s did not die at the failpoint: %v\n%s", m.name, m.cmd.ProcessState, m.tail())
	}
	m.died()
}

// waitIdle waits until all tasks have ended.
func (x *trio) waitIdle(t *testing.T) {
	t.Helper()
	for _, d := range x.submitters {
		d.until("all tasks have ended", d.isIdle)
	}
}

// submitted returns the tasks that were acknowledged so far.
func (x *trio) submitted() map[string]bool {
	all := map[string]bool{}
	for _, d := range x.submitters {
		for _, id := range append(d.atLeastOnce.all(), d.atMostOnce.all()...) {
			all[id] = true
		}
	}
	return all
}

// started checks I6 for the tasks that it has not seen yet: a task is started again only if
// its run failed, as tasks of one kind do once, or if the worker died.
func (x *trio) started(t *testing.T, known map[string]bool, died bool) {
	t.Helper()
	starts, ended := map[string]int{}, map[string]int{}
	for _, m := range x.worker().readMarks() {
		if m.what == "S" {
			starts[m.task]++
		} else {
			ended[m.task]++
		}
	}
	most := 1
	if died {
		most++
	}
	for id := range x.submitted() {
		if known[id] {
			continue
		}
		task, err := x.submitterOf(id).Task(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		allowed := most
		if task.Kind == "weak" {
			allowed++
		}
		if starts[id] > allowed || ended[id] == 0 && task.State == "SUCCESS" {
			t.Errorf("I6: %s is %s after %d starts and %d ends of its handler; %d starts are allowed", id, task.State, starts[id], ended[id], allowed)
		}
	}
}

// submitterOf returns the node at which a task was submitted.
func (x *trio) submitterOf(id string) *submitter {
	for _, d := range x.submitters {
		if slices.Contains(append(d.atLeastOnce.all(), d.atMostOnce.all()...), id) {
			return d
		}
	}
	x.admin().t.Fatalf("no node submitted %s", id)
	return nil
}

// dieWorking kills a node while tasks of the queue run.
func dieWorking(t *testing.T, x *trio, point string) {
	dying(t, x, point, wire.Request{Target: "queue:build", Kind: "build"})
}

// dieOnce does the same with tasks that need permission to start.
func dieOnce(t *testing.T, x *trio, point string) {
	dying(t, x, point, wire.Request{Target: "queue:build", Kind: "build", Mode: proto.AtMostOnce.Name()})
}

// dieGivingBack does the same with tasks that fail the first time. The start of a second
// attempt is durable before the handler is called.
func dieGivingBack(t *testing.T, x *trio, point string) {
	dying(t, x, point, wire.Request{Target: "queue:build", Kind: "weak"})
}

func dying(t *testing.T, x *trio, point string, r wire.Request) {
	m := x.victim(point)
	d := x.submitterExcept(m)
	p := d.atLeastOnce
	if r.Mode == proto.AtMostOnce.Name() {
		p = d.atMostOnce
	}
	if errs := p.submit(t.Context(), d.machine, 3, r); errs != nil {
		t.Fatal(errs)
	}
	m.waitFailpoint()
}

// victim returns the node that dies at a point.
func (x *trio) victim(point string) *machine {
	for _, m := range x.nodes {
		if m.cmd != nil && strings.Contains(strings.Join(m.cmd.Env, "\n"), "BALEFIRE_FAILPOINT="+point) {
			return m
		}
	}
	x.admin().t.Fatalf("no node is set to die at %s", point)
	return nil
}

// dieMoving kills a home while it hands the queue over, or receives it, with waiting tasks.
// The queue and its tasks arrive.
func dieMoving(t *testing.T, x *trio, point string) {
	m, from, to := x.victim(point), x.home(), x.other()
	x.wait(t, from, true)
	d := x.submitters[0]
	if errs := d.atLeastOnce.submit(t.Context(), d.machine, 3, wire.Request{Target: "queue:build", Kind: "build"}); errs != nil {
		t.Fatal(errs)
	}
	from.until("the tasks are pending", func() bool {
		q, err := from.Queue(context.Background(), "build")
		return err == nil && q.Waiting == 3
	})
	handOver := func() bool {
		_, err := from.HandOffQueue(context.Background(), "build", to.name)
		q, seen := from.Queue(context.Background(), "build")
		return !from.alive() || err == nil || seen == nil && !q.Here
	}
	from.until("it hands the queue over, or dies", handOver)
	m.waitFailpoint()
	from.until("it hands the queue over", handOver)
	to.until("the queue and its tasks have arrived", func() bool {
		q, err := to.Queue(context.Background(), "build")
		return err == nil && q.Here && q.Waiting == 3
	})
	x.wait(t, to, false)
}

// wait pauses or resumes the queue.
func (x *trio) wait(t *testing.T, home *machine, on bool) {
	t.Helper()
	if _, err := home.SetQueue(t.Context(), "build", wire.QueueSettings{Paused: &on}); err != nil {
		t.Fatal(err)
	}
}

// dieSeizing kills an admin while it seizes the queue from a home that is gone. The old
// home comes back and hands its tasks over.
func dieSeizing(t *testing.T, x *trio, point string) {
	admin, gone := x.victim(point), x.nodes[1]
	x.makeHome(t, gone)
	x.wait(t, gone, true)
	d := x.submitters[1]
	if errs := d.atLeastOnce.submit(t.Context(), d.machine, 3, wire.Request{Target: "queue:build", Kind: "build"}); errs != nil {
		t.Fatal(errs)
	}
	gone.until("the tasks are pending", func() bool {
		q, err := gone.Queue(context.Background(), "build")
		return err == nil && q.Waiting == 3
	})
	gone.kill()
	seize := func() bool {
		_, err := admin.SeizeQueue(context.Background(), "build", gone.name)
		q, seen := admin.Queue(context.Background(), "build")
		return !admin.alive() || err == nil || seen == nil && q.Here
	}
	admin.until("it seizes the queue, or dies", seize)
	admin.waitFailpoint()
	admin.until("it seizes the queue", seize)
	gone.start()
	admin.until("the tasks of the old home have arrived", func() bool {
		q, err := admin.Queue(context.Background(), "build")
		return err == nil && q.Here && q.Waiting == 3
	})
	x.wait(t, admin, false)
}

// makeHome makes m the home of the queue.
func (x *trio) makeHome(t *testing.T, m *machine) {
	t.Helper()
	if from := x.home(); from != m {
		from.until(fmt.Sprintf("it hands the queue over to %s", m.name), func() bool {
			_, err := from.HandOffQueue(context.Background(), "build", m.name)
			return err == nil
		})
		m.until("it is the home", func() bool {
			q, err := m.Queue(context.Background(), "build")
			return err == nil && q.Here
		})
	}
}
