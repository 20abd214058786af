package gossip

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics holds the runner's metrics. It works without a registry.
type metrics struct {
	rtt, age, converged                              prometheus.Histogram
	accepted, published, refused, strangers, dropped prometheus.Counter
	syncs                                            *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, r *Runner) (*metrics, error) {
	histogram := func(name, help string, first float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "balefire_gossip_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 2, 14)})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "balefire_gossip_" + name, Help: help})
	}
	m := &metrics{
		rtt:       histogram("probe_rtt_seconds", "Round trips of direct probes.", 0.0005),
		age:       histogram("rumor_age_seconds", "Age of records on arrival, comparing two clocks.", 0.001),
		converged: histogram("convergence_seconds", "Time from detecting a difference to another node until both know the same.", 0.01),
		accepted:  counter("rumors_heard_total", "Statements that were accepted."),
		published: counter("rumors_published_total", "Statements of this node that were published."),
		refused:   counter("rumors_refused_total", "Messages and statements that were malformed or forged."),
		strangers: counter("rumors_strangers_total", "Messages and statements by nodes that are not known members."),
		dropped:   counter("messages_dropped_total", "Messages dropped because the queue was full."),
		syncs:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "balefire_gossip_exchanges_total", Help: "Digest exchanges that this node started."}, []string{"end"}),
	}
	for _, end := range []string{"complete", "failed"} {
		m.syncs.WithLabelValues(end) // exported as 0 until there is one
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.rtt), reg.Register(m.age), reg.Register(m.converged), reg.Register(m.accepted), reg.Register(m.published),
		reg.Register(m.refused), reg.Register(m.strangers), reg.Register(m.dropped), reg.Register(m.syncs), reg.Register(coreCollector{r}))
}

// recordAge observes the age of a received record.
func (m *metrics) recordAge(now time.Time, n *Update) {
	if at := n.Record.GetTimeMs(); at > 0 {
		m.age.Observe(max(0, now.Sub(time.UnixMilli(at)).Seconds()))
	}
}

// A coreCollector exports the core's counts.
type coreCollector struct{ r *Runner }

var (
	descMembers  = prometheus.NewDesc("balefire_gossip_members", "Other nodes, by status.", []string{"state"}, nil)
	descHealth   = prometheus.NewDesc("balefire_gossip_health", "Local health score: 0 is healthy, 8 is the worst.", nil, nil)
	descIsolated = prometheus.NewDesc("balefire_gossip_isolated", "1 while this node considers itself isolated.", nil, nil)
	descProbes   = prometheus.NewDesc("balefire_gossip_probes_total", "Direct probes by this node, by result.", []string{"end"}, nil)
	descRefuted  = prometheus.NewDesc("balefire_gossip_refuted_total", "Suspicions by this node that were refuted.", nil, nil)
	descOwn      = prometheus.NewDesc("balefire_gossip_own_refutations_total", "Suspicions of this node, which it refuted.", nil, nil)
	descVerdicts = prometheus.NewDesc("balefire_gossip_verdicts_total", "Nodes declared dead.", nil, nil)
	descFlaps    = prometheus.NewDesc("balefire_gossip_suppressed_total", "Flaps of nodes during their recovery time.", nil, nil)
	descPruned   = prometheus.NewDesc("balefire_gossip_pruned_total", "Dead nodes that were forgotten.", nil, nil)
)

// Describe and Collect implement prometheus.Collector.
func (v coreCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descMembers, descHealth, descIsolated, descProbes, descRefuted, descOwn, descVerdicts, descFlaps, descPruned} {
		ch <- d
	}
}

// Collect reads the core.
func (v coreCollector) Collect(ch chan<- prometheus.Metric) {
	s := v.r.Summary()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for st := Unknown; st <= Left; st++ {
		gauge(descMembers, s.ByStatus[st], st.String())
	}
	gauge(descHealth, s.Health)
	isolated := 0
	if s.Isolated {
		isolated = 1
	}
	gauge(descIsolated, isolated)
	count(descProbes, s.Counts.Acks, "answered")
	count(descProbes, s.Counts.Misses, "missed")
	count(descRefuted, s.Counts.Refutations)
	count(descOwn, s.Counts.OwnRefutations)
	count(descVerdicts, s.Counts.Verdicts)
	count(descFlaps, s.Counts.Suppressed)
	count(descPruned, s.Counts.Pruned)
}
