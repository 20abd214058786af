package transport

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics holds the transport's metrics. It works without a registry.
type metrics struct {
	connections  *prometheus.GaugeVec
	received     prometheus.Counter
	refused      prometheus.Counter
	offenses     *prometheus.CounterVec
	reservations prometheus.Gauge
	relayed      prometheus.Counter
	punches      *prometheus.CounterVec
	paths        prometheus.Counter
	rumors       *prometheus.CounterVec
	repairs      *prometheus.CounterVec
	exchanges    *prometheus.CounterVec
	tableSize    prometheus.Gauge
	lanFinds     *prometheus.CounterVec
	bodies       *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		connections: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "balefire_transport_connections", Help: "Verified connections, by kind of path and network of its first hop.",
		}, []string{"path", "network"}),
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "balefire_transport_frames_received_total", Help: "Frames of task streams that were acknowledged."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "balefire_transport_refused_total", Help: "Connections and streams that were rejected."}),
		offenses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_transport_violations_total", Help: "Streams closed because the peer violated the protocol."}, []string{"stream"}),
		rumors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_transport_rumors_total", Help: "Messages of the gossip topic, by outcome."}, []string{"outcome"}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_transport_gossip_repairs_total", Help: "Connected members lost by gossip, by repair action."}, []string{"kind"}),
		exchanges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_transport_exchanges_total", Help: "Sync streams, by result."}, []string{"result"}),
		tableSize: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "balefire_transport_dht_peers", Help: "Peers in the routing table of the DHT."}),
		lanFinds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_transport_lan_finds_total", Help: "Nodes seen on the LAN, by kind."}, []string{"who"}),
		reservations: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "balefire_transport_reservations", Help: "Relays that accept connections for this node."}),
		relayed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "balefire_transport_relayed_bytes_total", Help: "Bytes that this node relayed for others."}),
		punches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_transport_punches_total", Help: "Attempts to establish a direct path, by outcome."}, []string{"outcome"}),
		bodies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_body_bytes_total", Help: "Bytes of streamed bodies and results that became durable at their receiver, by direction."}, []string{"direction"}),
		paths: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "balefire_transport_path_changes_total", Help: "Changes of the path in use to a peer."}),
	}
	m.zero()
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.connections, m.received, m.refused, m.offenses, m.rumors, m.repairs, m.exchanges, m.tableSize, m.lanFinds,
		m.reservations, m.relayed, m.punches, m.paths, m.bodies,
	} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// zero creates the series that are monitored: one that does not exist yet has no rate.
func (m *metrics) zero() {
	for _, network := range []string{"quic", "tcp"} {
		for _, path := range []string{"direct", "relay"} {
			m.connections.WithLabelValues(path, network)
		}
	}
	for _, outcome := range []string{"heard", "published", "unsent", "crowded out", "unheard"} {
		m.rumors.WithLabelValues(outcome)
	}
	for _, outcome := range []string{"direct", "failed"} {
		m.punches.WithLabelValues(outcome)
	}
	for _, direction := range []string{"in", "out"} {
		m.bodies.WithLabelValues(direction)
	}
	for _, result := range []string{"asked", "answered", "failed"} {
		m.exchanges.WithLabelValues(result)
	}
}

// maxScored bounds the relays with a score metric.
const maxScored = 16

// A relayCollector exports the relays that this node is connected to, and its own relay
// service.
type relayCollector struct {
	served  *relayCounters
	relays  *relays
	running *atomic.Bool // of the transport
}

var (
	descScore        = prometheus.NewDesc("balefire_transport_relay_score", "Score of the path to a relay, for the 16 best that are directly connected.", []string{"relay"}, nil)
	descReservations = prometheus.NewDesc("balefire_transport_relay_reservations", "Reservations that others hold at this node.", nil, nil)
	descCircuits     = prometheus.NewDesc("balefire_transport_relay_circuits", "Open circuits through this node.", nil, nil)
)

// registerRelays registers c at r, if there is one.
func registerRelays(r prometheus.Registerer, c relayCollector) error {
	if r == nil {
		return nil
	}
	return r.Register(c)
}

// Describe and Collect implement prometheus.Collector.
func (v relayCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descScore, descReservations, descCircuits} {
		ch <- d
	}
}

// Collect reads the current state.
func (v relayCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descReservations, prometheus.GaugeValue, float64(v.served.reservations.Load()))
	ch <- prometheus.MustNewConstMetric(descCircuits, prometheus.GaugeValue, float64(v.served.circuits.Load()))
	if !v.running.Load() {
		return
	}
	for _, c := range v.relays.scored() {
		ch <- prometheus.MustNewConstMetric(descScore, prometheus.GaugeValue, c.Score, c.Peer.String())
	}
}
