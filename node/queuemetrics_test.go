package node

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// metrics returns the values of all gauges and counters of a node by name and labels.
func (s *simNode) metrics() map[string]float64 { return metricsOf(s.mesh.t, s.get()) }

// metricsOf returns the metrics of a node by name and labels.
func metricsOf(t testing.TB, n *Node) map[string]float64 {
	t.Helper()
	families, err := n.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

// hasObservations reports whether a histogram of a node has n observations.
func (c *cluster) hasObservations(s *simNode, name string, n uint64) bool {
	families, err := s.node.Registry().Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetHistogram().GetSampleCount() == n
		}
	}
	return false
}

// The home of a queue counts the tasks of class low that it granted because they had waited
// too long.
func TestQueueMetricOfRescuedTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 10*time.Millisecond)
		defer c.close()
		c.setQueue(wire.QueueSettings{Paused: new(true)})
		var ids []string
		for _, of := range []struct {
			class proto.Class
			count int
		}{{proto.Critical, 180}, {proto.High, 20}, {proto.Normal, 10}, {proto.Low, 3}} {
			rs := make([]wire.Request, of.count)
			for i := range rs {
				rs[i] = wire.Request{Target: "queue:build", Kind: "build", Class: of.class.Name()}
			}
			got, errs := c.nodes[1].node.SubmitMany(t.Context(), rs)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for _, s := range got {
				ids = append(ids, s.ID)
			}
		}
		c.waitAccepted(0, ids)
		const name = "balefire_low_starved_total{queue}"
		if got := c.nodes[0].metrics()[name]; got != 0 {
			t.Fatalf("%v tasks before the first grant", got)
		}
		c.setQueue(wire.QueueSettings{Paused: new(false)})
		c.waitAll(1, ids, 10*time.Minute)
		if got := c.nodes[0].metrics()[name]; got == 0 || got > 3 {
			t.Errorf("%v of 3 tasks of class low were counted", got)
		}
	})
}

// The metrics show waiting and owned tasks, homeless queues and paused nodes.
func TestQueueMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Minute)
		defer c.close()
		c.onlyNode(2, 2)
		c.submitMany(1, 5)
		time.Sleep(3 * time.Second)
		expect := func(s *simNode, want map[string]float64) {
			t.Helper()
			got := s.metrics()
			for name, v := range want {
				if x, ok := got[name]; !ok || x != v {
					t.Errorf("%s: %s is %v (%v), want %v", s.name, name, x, ok, v)
				}
			}
		}
		expect(c.nodes[0], map[string]float64{
			"balefire_queue_tasks{build,waiting}": 3, "balefire_queue_tasks{build,owned}": 2, "balefire_queue_tasks{build,going}": 0,
			"balefire_leases{ALIVE}": 2, "balefire_leases{DEAD}": 0, "balefire_queues_homeless{}": 0, "balefire_worker_paused{itself}": 0,
			"balefire_worker_paused{person}": 0, "balefire_worker_pauses_total{}": 0, "balefire_low_starved_total{home}": 0, "balefire_low_starved_total{queue}": 0,
			"balefire_ownership_events_total{granted}": 2, "balefire_members_oldest_dead_seconds{}": 0,
		})
		if _, err := c.nodes[2].node.Queues.Drain(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		expect(c.nodes[2], map[string]float64{"balefire_worker_paused{person}": 1})
		c.nodes[2].crash()
		time.Sleep(time.Minute)
		expect(c.nodes[0], map[string]float64{"balefire_queue_tasks{build,waiting}": 5, "balefire_leases{ALIVE}": 0, "balefire_ownership_events_total{owner_dead}": 2})
		if v := c.nodes[0].metrics()["balefire_members_oldest_dead_seconds{}"]; v < 30 || v > 60 {
			t.Errorf("the dead member has been dead for %v s", v)
		}
		c.nodes[0].crash()
		c.await(2*time.Minute, "the last node to consider itself isolated", func() bool { return c.nodes[1].metrics()["balefire_worker_pauses_total{}"] == 1 })
		expect(c.nodes[1], map[string]float64{"balefire_worker_paused{itself}": 1})
		c.await(time.Minute, "the queue to be homeless", func() bool { return c.nodes[1].metrics()["balefire_queues_homeless{}"] == 1 })
	})
}
