package transport

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of the relay service. Circuits themselves are unlimited: they belong to members,
// whose windows bound the data in flight.
const (
	maxReservations = 2048
	maxCircuits     = 256 // per peer
)

// startRelay serves circuits for members until the returned function is called.
func (t *Transport) startRelay() (stop func(), err error) {
	r := relayv2.DefaultResources()
	r.Limit = nil
	r.BufferSize = bufferSize
	r.MaxReservations, r.MaxReservationsPerIP, r.MaxReservationsPerASN = maxReservations, maxReservations, maxReservations
	r.MaxCircuits = maxCircuits
	s, err := relayv2.New(&guardedHost{t.host, t.guards.onlyMembers}, relayv2.WithResources(r), relayv2.WithACL(relayACL{t.members}),
		relayv2.WithReservationAddressFilter(func(ma.Multiaddr) bool { return true }), relayv2.WithMetricsTracer(t.reach.served))
	if err != nil {
		return nil, fmt.Errorf("relay service: %w", err)
	}
	return func() { s.Close() }, nil
}

// A relayACL admits only verified members, as clients and as targets.
type relayACL struct{ members *members }

// AllowReserve reports whether p may make a reservation.
func (a relayACL) AllowReserve(p peer.ID, _ ma.Multiaddr) bool { return a.members.verified(p) }

// AllowConnect reports whether src may connect to dest.
func (a relayACL) AllowConnect(src peer.ID, _ ma.Multiaddr, dest peer.ID) bool {
	return a.members.verified(src) && a.members.verified(dest)
}

// A guardedHost is the host for libp2p services that serve only verified members: a
// stranger's stream is reset before a byte of it is read.
type guardedHost struct {
	host.Host
	guard func(network.StreamHandler) network.StreamHandler // serves members only
}

// SetStreamHandler serves pid for members.
func (h *guardedHost) SetStreamHandler(pid protocol.ID, serve network.StreamHandler) {
	h.Host.SetStreamHandler(pid, h.guard(serve))
}

// relayCounters counts the relay service's work.
type relayCounters struct {
	circuits     atomic.Int64 // currently open
	reservations atomic.Int64 // currently held here
	bytes        atomic.Uint64
	total        prometheus.Counter // of bytes
}

func (r *relayCounters) RelayStatus(bool)                        {}
func (r *relayCounters) ConnectionOpened()                       { r.circuits.Add(1) }
func (r *relayCounters) ConnectionClosed(time.Duration)          { r.circuits.Add(-1) }
func (r *relayCounters) ConnectionRequestHandled(circuit.Status) {}
func (r *relayCounters) ReservationAllowed(renewal bool) {
	if !renewal {
		r.reservations.Add(1)
	}
}
func (r *relayCounters) ReservationClosed(n int)                  { r.reservations.Add(-int64(n)) }
func (r *relayCounters) ReservationRequestHandled(circuit.Status) {}
func (r *relayCounters) BytesTransferred(n int)                   { r.bytes.Add(uint64(n)); r.total.Add(float64(n)) }
