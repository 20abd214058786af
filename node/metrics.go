package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/proto"
)

// A meter counts what happens to tasks and shows how many there are.
type meter struct {
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

// taskBuckets suit tasks of a millisecond and of a day.
var taskBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86400}

func newMeter(n *Node) *meter {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("balefire_"+name, help, labels, nil)
	}
	m := &meter{
		node: n,
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_task_changes_total", Help: "Durable changes of tasks, by what this node is to them and the state they came to.",
		}, []string{"role", "state"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "balefire_task_duration_seconds", Help: "From the making of a task to its end, at its home.", Buckets: taskBuckets,
		}, []string{"class"}),
		runs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "balefire_run_duration_seconds", Help: "Runs of handlers of this node, failed ones too.", Buckets: taskBuckets,
		}, []string{"kind"}),
		dead:   desc("dead_letters", "Tasks of this home that are not tried again by themselves."),
		expiry: desc("certificate_expiry_timestamp_seconds", "When the certificate of this node ends, as Unix time."),
		tasks:  desc("tasks", "Tasks that have not ended, by what this node is to them and their state.", "role", "state"),
		slots:  desc("handler_slots", "Handlers that may run at once, and those that do.", "use"),
		peers:  desc("peers", "Known peers, by whether they are connected.", "connected"),
		info:   desc("build_info", "1, with the version as a label.", "version"),
	}
	n.registry.MustRegister(m, m.changes, m.latency, m.runs)
	return m
}

// taskChanged counts a change of a task that is on disk.
func (m *meter) taskChanged(role string, r *proto.Record) {
	m.changes.WithLabelValues(role, r.GetState().Name()).Inc()
	took, ok := taskTook(role, r)
	switch {
	case !ok:
	case role == RoleHome:
		m.latency.WithLabelValues(r.GetClass().Name()).Observe(took.Seconds())
	default:
		m.runs.WithLabelValues(r.GetKind()).Observe(took.Seconds())
	}
}

// Describe tells the collector's families.
func (m *meter) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.tasks, m.dead, m.slots, m.peers, m.expiry, m.info} {
		ch <- d
	}
}

// Collect reads the rooms' own counts.
func (m *meter) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	gauge(m.info, 1, m.node.cfg.Version)
	if m.node.inbox == nil || m.node.net == nil {
		return // not open yet
	}
	for state, n := range m.node.outbox.Stats().ByState {
		gauge(m.tasks, n, RoleHome, state.Name())
	}
	gauge(m.dead, m.node.outbox.Stats().Dead)
	gauge(m.expiry, int(m.node.self.NotAfter.Unix()))
	in := m.node.inbox.Status()
	for state, n := range in.Backlog.ByState {
		if state.Terminal() {
			continue // it is remembered until its origin has settled it, or went on with its queue
		}
		gauge(m.tasks, n, RoleOwner, state.Name())
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
