package queue

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A queueMetrics exports the metrics of shared queues, of the leases that this node
// granted, and of its pauses.
type queueMetrics struct {
	queues *Queues
	pauses prometheus.Counter
}

var (
	descQueueTasks = prometheus.NewDesc("balefire_queue_tasks", "Tasks of queues at this node: waiting and owned if their home is here, and going to another home.", []string{"queue", "state"}, nil)
	descHomeless   = prometheus.NewDesc("balefire_queues_homeless", "Known queues whose home is lost.", nil, nil)
	descLeases     = prometheus.NewDesc("balefire_leases", "Active leases granted by this node, by the member state of their owners.", []string{"owner"}, nil)
	descPaused     = prometheus.NewDesc("balefire_worker_paused", "1 while this node takes nothing new from shared queues: by itself, because it is isolated or slow, or by a person who drains it.", []string{"by"}, nil)
	descStarved    = prometheus.NewDesc("balefire_low_starved_total", "Times a task of class low was taken because it had waited too long.", []string{"role"}, nil)
	descOldestDead = prometheus.NewDesc("balefire_members_oldest_dead_seconds", "How long the longest-dead member has been dead; 0: no member is dead.", nil, nil)
)

func newQueueMetrics(qs *Queues) *queueMetrics {
	m := &queueMetrics{queues: qs, pauses: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "balefire_worker_pauses_total", Help: "Times this node paused itself and stopped taking new tasks from shared queues.",
	})}
	qs.cfg.Registerer.MustRegister(m, m.pauses)
	return m
}

// Describe implements [prometheus.Collector].
func (m *queueMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descQueueTasks, descHomeless, descLeases, descPaused, descStarved, descOldestDead} {
		ch <- d
	}
}

// countTime bounds how long a collection waits for the ownership subsystem.
const countTime = time.Second

// Collect reads the counts of the subsystems.
func (m *queueMetrics) Collect(ch chan<- prometheus.Metric) {
	qs := m.queues
	if !qs.running.Load() {
		return // the ownership subsystem does not run
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), countTime)
	defer cancel()
	if c, err := qs.Driver.Counts(ctx); err == nil {
		for _, s := range qs.OwnStates() {
			q := c.Queues[s.GetName()]
			gauge(descQueueTasks, float64(q.Waiting), s.GetName(), "waiting")
			gauge(descQueueTasks, float64(q.Owned), s.GetName(), "owned")
			gauge(descQueueTasks, float64(q.Going), s.GetName(), "going")
			delete(c.Queues, s.GetName())
		}
		for name, q := range c.Queues { // homes on other nodes: all tasks that are still here must move there
			gauge(descQueueTasks, float64(q.Waiting+q.Owned+q.Going), name, "going")
		}
		byState := map[string]int{}
		for p, count := range c.Owners {
			byState[qs.statusOf(p).String()] += count
		}
		for _, s := range []gossip.Status{gossip.Alive, gossip.Suspect, gossip.Dead, gossip.Left, gossip.Unknown} {
			gauge(descLeases, float64(byState[s.String()]), s.String())
		}
		ch <- prometheus.MustNewConstMetric(descStarved, prometheus.CounterValue, float64(c.Rescued), "queue")
	}
	homeless := 0
	for _, s := range qs.Driver.QueueStates() {
		if home, err := proto.PeerIDFrom(s.GetHome()); err == nil {
			if _, _, gone := qs.HomeGone(home); gone {
				homeless++
			}
		}
	}
	gauge(descHomeless, float64(homeless))
	gauge(descPaused, boolValue(qs.gossip.SelfPaused()), "itself")
	gauge(descPaused, boolValue(qs.drained.Load()), "person")
	oldest := time.Duration(0)
	for _, x := range qs.gossip.Members() {
		if x.Status == gossip.Dead {
			oldest = max(oldest, x.Since)
		}
	}
	gauge(descOldestDead, oldest.Seconds())
	ch <- prometheus.MustNewConstMetric(descStarved, prometheus.CounterValue, float64(qs.parts.Outbox.Stats().Starved), wire.RoleHome)
	ch <- prometheus.MustNewConstMetric(descStarved, prometheus.CounterValue, float64(qs.parts.Inbox.Status().Backlog.Starved), wire.RoleOwner)
}

// statusOf returns the member state of p, which may be this node itself.
func (qs *Queues) statusOf(p proto.PeerID) gossip.Status {
	if p == qs.self {
		return gossip.Alive
	}
	m, _ := qs.gossip.Member(p)
	return m.Status
}

func boolValue(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
