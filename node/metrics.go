package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/proto"
)

// A meter counts what happens to tasks and shows how many there are.
type meter struct {
	node    *Node
	changes *prometheus.CounterVec
	tasks   *prometheus.Desc
	slots   *prometheus.Desc
	peers   *prometheus.Desc
	info    *prometheus.Desc
}

func newMeter(n *Node) *meter {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("balefire_"+name, help, labels, nil)
	}
	m := &meter{
		node: n,
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_task_changes_total", Help: "Durable changes of tasks, by what this node is to them and the state they came to.",
		}, []string{"role", "state"}),
		tasks: desc("tasks", "Tasks that have not ended, by what this node is to them and their state.", "role", "state"),
		slots: desc("handler_slots", "Handlers that may run at once, and those that do.", "use"),
		peers: desc("peers", "Known peers, by whether they are connected.", "connected"),
		info:  desc("build_info", "1, with the version as a label.", "version"),
	}
	n.registry.MustRegister(m, m.changes)
	return m
}

func (m *meter) count(role string, s proto.TaskState) {
	m.changes.WithLabelValues(role, s.Name()).Inc()
}

// Describe tells the collector's families.
func (m *meter) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.tasks, m.slots, m.peers, m.info} {
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
	in := m.node.inbox.Status()
	for state, n := range in.Backlog.ByState {
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
