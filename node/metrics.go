package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A taskMetrics exports the metrics of tasks, slots and peers.
type taskMetrics struct {
	node    *Node
	changes *prometheus.CounterVec
	latency *prometheus.HistogramVec
	runs    *prometheus.HistogramVec
	tasks   *prometheus.Desc
	dead    *prometheus.Desc
	slots   *prometheus.Desc
	peers   *prometheus.Desc
	expiry  *prometheus.Desc
	info    *prometheus.Desc
}

// taskBuckets covers tasks that take from a millisecond to a day.
var taskBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86400}

func newTaskMetrics(n *Node) *taskMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("balefire_"+name, help, labels, nil)
	}
	m := &taskMetrics{
		node: n,
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_task_changes_total", Help: "Durable state changes of tasks, by the role of this node and the new state.",
		}, []string{"role", "state"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "balefire_task_duration_seconds", Help: "Time from the creation of a task to its end, measured at its home.", Buckets: taskBuckets,
		}, []string{"class"}),
		runs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "balefire_run_duration_seconds", Help: "Duration of handler runs on this node, including failed ones.", Buckets: taskBuckets,
		}, []string{"kind"}),
		dead:   desc("dead_letters", "Tasks with this home that are not retried automatically."),
		expiry: desc("certificate_expiry_timestamp_seconds", "Unix time at which the certificate of this node expires."),
		tasks:  desc("tasks", "Unfinished tasks, by the role of this node and their state.", "role", "state"),
		slots:  desc("handler_slots", "Handler slots, all and busy.", "use"),
		peers:  desc("peers", "Known peers, connected and not.", "connected"),
		info:   desc("build_info", "1, with the version as a label.", "version"),
	}
	n.registry.MustRegister(m, m.changes, m.latency, m.runs)
	return m
}

// taskChanged counts a state change of a task that is durable.
func (m *taskMetrics) taskChanged(role string, r *proto.Record) {
	m.changes.WithLabelValues(role, r.GetState().Name()).Inc()
	took, ok := taskTook(role, r)
	switch {
	case !ok:
	case role == wire.RoleHome:
		m.latency.WithLabelValues(r.GetClass().Name()).Observe(took.Seconds())
	default:
		m.runs.WithLabelValues(r.GetKind()).Observe(took.Seconds())
	}
}

// Describe implements [prometheus.Collector].
func (m *taskMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.tasks, m.dead, m.slots, m.peers, m.expiry, m.info} {
		ch <- d
	}
}

// Collect reads the counts of the subsystems.
func (m *taskMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	gauge(m.info, 1, m.node.cfg.Version)
	if m.node.inbox == nil || m.node.net == nil {
		return // not open yet
	}
	for state, n := range m.node.outbox.Stats().ByState {
		gauge(m.tasks, n, wire.RoleHome, state.Name())
	}
	gauge(m.dead, m.node.outbox.Stats().Dead)
	gauge(m.expiry, int(m.node.book.Self().Member.NotAfter.Unix()))
	in := m.node.inbox.Status()
	for state, n := range in.Backlog.ByState {
		if state.Terminal() {
			continue // kept until its origin has settled it, or because it moved with its queue
		}
		gauge(m.tasks, n, wire.RoleOwner, state.Name())
	}
	gauge(m.slots, in.Slots, "all")
	gauge(m.slots, in.Used, "busy")
	connected := 0
	for _, p := range m.node.net.Peers() {
		if p.Connected {
			connected++
		}
	}
	gauge(m.peers, connected, "yes")
	gauge(m.peers, len(m.node.book.List())-connected, "no")
}
