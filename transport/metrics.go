package transport

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what the transport does. They work without a registry.
type metrics struct {
	connections prometheus.Gauge
	received    prometheus.Counter
	refused     prometheus.Counter
	offences    *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "balefire_transport_connections", Help: "Verified connections."}),
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "balefire_transport_frames_received_total", Help: "Frames of task streams that were answered."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "balefire_transport_refused_total", Help: "Connections and streams that were not let in."}),
		offences: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_transport_offences_total", Help: "Streams that ended because the peer broke the protocol."}, []string{"stream"}),
	}
	if r == nil {
		return m, nil
	}
	return m, errors.Join(r.Register(m.connections), r.Register(m.received), r.Register(m.refused), r.Register(m.offences))
}
