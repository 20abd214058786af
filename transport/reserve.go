package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	circuitproto "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// A reservation is a slot at a relay that accepts connections for this node.
type reservation struct {
	on      *conn // the relay drops it with the last connection
	made    time.Duration
	until   time.Time // local wall time
	circuit []ma.Multiaddr
}

// fresh reports whether the reservation need not be renewed.
func (h *reservation) fresh(now, doubted time.Duration) bool {
	return now-h.made < reservationRenew && h.made >= doubted
}

// Timing of reservations. The expiration time sent by the relay is ignored, since its
// clock may be wrong: all nodes' relays keep a reservation for an hour.
const (
	reservationTTL   = time.Hour
	reservationRenew = 20 * time.Minute
	reserveTimeout   = 5 * time.Second
	reserveScan      = time.Second
	reserveFirst     = 100 * time.Millisecond // delay after the first refusal: the relay may not have read this node's hello
	reserveLongest   = time.Minute
	reserveTries     = 3 // failures in a row after which a relay takes the place of no other one
)

// errRefused is returned if a relay refuses a reservation.
var errRefused = errors.New("transport: the relay refused a reservation")

// A reserver maintains reservations at the best relays.
type reserver struct {
	self    proto.PeerID
	host    host.Host
	gate    Gate
	cfg     Config
	log     *slog.Logger
	met     *metrics
	peers   *peerTable
	relays  *relays
	emit    func(Event)
	changed func() // tells peers that the relays have changed
	granted func() // called when a further relay has granted a reservation

	circuits      atomic.Pointer[[]ma.Multiaddr] // addresses through the relays with a reservation
	refreshBefore atomic.Int64                   // monotonic nanoseconds; older reservations are renewed
	wake          chan struct{}                  // relays have changed, or must be checked again

	mu       sync.Mutex
	held     map[proto.PeerID]*reservation
	refusing map[proto.PeerID]bool // relays that failed reserveTries times or more

	pick   route.Picker // used by run alone, as all that follows
	demand relayDemand
	tries  map[proto.PeerID]*attempt
	done   chan reserved
}

// An attempt determines when a relay is asked next.
type attempt struct {
	busy     bool
	failures int
	due      time.Duration
}

// reserved is the result of an attempt.
type reserved struct {
	relay proto.PeerID
	on    *conn
	addrs []ma.Multiaddr
	err   error
}

// run maintains reservations at the best relays until ctx is done.
func (r *reserver) run(ctx context.Context) {
	if r.cfg.Reserve == 0 {
		return
	}
	r.pick, r.tries, r.done = route.Picker{Want: r.cfg.Reserve}, make(map[proto.PeerID]*attempt), make(chan reserved)
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		case got := <-r.done:
			r.finished(got)
		}
		for _, c := range r.due() {
			wg.Go(func() {
				got := reserved{relay: c.peer, on: c}
				got.addrs, got.err = r.ask(ctx, c)
				select {
				case r.done <- got:
				case <-ctx.Done():
				}
			})
		}
		timer.Reset(r.pause())
	}
}

// due drops lost reservations, selects relays and returns those to ask now. A relay that
// is replaced by a better one is kept until that one has granted a reservation.
func (r *reserver) due() []*conn {
	now := r.cfg.Clock.Mono()
	if r.demand.made == 0 || now-r.demand.made >= measureEvery {
		r.demand = r.relays.demand()
	}
	held := r.reservations()
	live := make(map[proto.PeerID]*conn)
	var candidates, dropping []route.Candidate
	var refusing []proto.PeerID
	for _, p := range r.relays.list() {
		c := r.peers.best(p)
		if c == nil || !c.direct() || p == r.self || r.gate.Blocked(p) {
			continue
		}
		if live[p] = c; held[p] == nil && r.refuses(p) {
			refusing = append(refusing, p)
			continue
		}
		one := route.Candidate{Peer: p, Score: r.relays.scoreFor(p, r.demand).Total}
		if r.relays.drops(p) {
			dropping = append(dropping, one)
		} else {
			candidates = append(candidates, one)
		}
	}
	candidates = append(candidates, fillers(dropping, held, r.cfg.Reserve-len(candidates))...)
	for p := range held {
		if live[p] == nil {
			r.drop(p, "the relay is disconnected")
			delete(held, p)
		}
	}
	wanted := r.pick.Pick(slices.SortedFunc(maps.Keys(held), comparePeers), candidates, now)
	for p := range held {
		if !slices.Contains(wanted, p) && r.replaced(held, wanted) {
			r.drop(p, "replaced by a better relay")
		}
	}
	var ask []*conn
	for _, p := range append(wanted, refusing...) {
		a := r.tries[p]
		if a == nil {
			a = &attempt{}
			r.tries[p] = a
		}
		if h := held[p]; h != nil && h.on == live[p] && h.fresh(now, time.Duration(r.refreshBefore.Load())) {
			continue
		}
		if !a.busy && now >= a.due {
			a.busy = true
			ask = append(ask, live[p])
		}
	}
	maps.DeleteFunc(r.tries, func(p proto.PeerID, a *attempt) bool {
		gone := live[p] == nil && !a.busy
		if gone {
			r.setRefuses(p, false)
		}
		return gone
	})
	return ask
}

// fillers returns so many relays that drop circuits, to fill places that no other relay takes:
// first those with a reservation, then the best.
func fillers(dropping []route.Candidate, held map[proto.PeerID]*reservation, count int) []route.Candidate {
	without := func(c route.Candidate) int {
		if held[c.Peer] == nil {
			return 1
		}
		return 0
	}
	slices.SortFunc(dropping, func(a, b route.Candidate) int {
		return cmp.Or(cmp.Compare(without(a), without(b)), cmp.Compare(b.Score, a.Score), comparePeers(a.Peer, b.Peer))
	})
	return dropping[:max(0, min(count, len(dropping)))]
}

// refuses reports whether relay p has refused reservations, or not answered, several times in a row.
// It is still asked from time to time.
func (r *reserver) refuses(p proto.PeerID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusing[p]
}

func (r *reserver) setRefuses(p proto.PeerID, refuses bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.refusing, p); refuses {
		r.refusing[p] = true
	}
}

// replaced reports whether reservations at all wanted relays are held, so that others can
// be dropped.
func (r *reserver) replaced(held map[proto.PeerID]*reservation, wanted []proto.PeerID) bool {
	return !slices.ContainsFunc(wanted, func(p proto.PeerID) bool { return held[p] == nil })
}

// finished records the result of an attempt.
func (r *reserver) finished(got reserved) {
	now := r.cfg.Clock.Mono()
	a := r.tries[got.relay]
	if a == nil {
		return
	}
	a.busy = false
	if got.err != nil {
		a.failures++
		r.setRefuses(got.relay, a.failures >= reserveTries)
		a.due = now + time.Duration((0.5+rand.Float64()/2)*float64(min(reserveLongest, reserveFirst<<min(a.failures-1, 12))))
		r.log.Debug("no reservation", "relay", got.relay, "tries", a.failures, "why", got.err)
		if h := r.reservations()[got.relay]; h != nil && h.on != got.on {
			r.drop(got.relay, got.err.Error())
		}
		return
	}
	a.failures, a.due = 0, now
	r.setRefuses(got.relay, false)
	r.add(got, now)
}

// pause returns the time until something is due.
func (r *reserver) pause() time.Duration {
	now, pause := r.cfg.Clock.Mono(), r.cfg.Clock.Until(reserveScan)
	for _, a := range r.tries {
		if !a.busy && a.due > now {
			pause = min(pause, a.due-now)
		}
	}
	return pause
}

// add records a reservation and announces it.
func (r *reserver) add(got reserved, now time.Duration) {
	r.mu.Lock()
	before := r.held[got.relay]
	r.held[got.relay] = &reservation{
		on: got.on, made: now, until: r.cfg.Clock.Now().Add(reservationTTL), circuit: got.addrs,
	}
	changed := r.publish()
	r.mu.Unlock()
	got.on.reservedAt.Store(int64(max(now, 1)))
	r.host.ConnManager().Protect(toLibp2p(got.relay), "relay")
	if before == nil {
		r.met.reservations.Inc()
		r.log.Info("reserved", "relay", got.relay)
		r.emit(Event{Peer: got.relay, Kind: EventReserved, Path: got.on.raw.RemoteMultiaddr().String()})
		r.granted()
	}
	if changed {
		r.changed()
	}
}

// drop removes a reservation.
func (r *reserver) drop(relay proto.PeerID, why string) {
	r.mu.Lock()
	h := r.held[relay]
	delete(r.held, relay)
	r.publish()
	r.mu.Unlock()
	if h == nil {
		return
	}
	h.on.reservedAt.Store(0)
	r.host.ConnManager().Unprotect(toLibp2p(relay), "relay")
	r.met.reservations.Dec()
	r.log.Info("reservation lost", "relay", relay, "why", why)
	r.emit(Event{Peer: relay, Kind: EventReservationLost, Detail: why})
	r.changed()
}

// publish sets this node's circuit addresses from its reservations and reports
// whether that changed them. The caller holds mu.
func (r *reserver) publish() bool {
	var all []ma.Multiaddr
	for _, p := range slices.SortedFunc(maps.Keys(r.held), comparePeers) {
		all = append(all, r.held[p].circuit...)
	}
	old := r.circuits.Swap(&all)
	return old == nil && len(all) > 0 || old != nil && !slices.EqualFunc(*old, all, ma.Multiaddr.Equal)
}

// reservations returns a copy of the reservations.
func (r *reserver) reservations() map[proto.PeerID]*reservation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.held)
}

// RefusesReservations reports whether a connected relay has refused reservations of this node, or not
// answered, several times in a row.
func (t *Transport) RefusesReservations(relay proto.PeerID) bool {
	return t.reach.reserver.refuses(relay)
}

// Reservations returns the relays that accept connections for this node now.
func (t *Transport) Reservations() []proto.PeerID {
	return slices.SortedFunc(maps.Keys(t.reach.reserver.reservations()), comparePeers)
}

// ask asks the relay at the other end of c for a reservation and returns the
// circuit addresses through it. Its errors do not name the relay: the callers do.
func (r *reserver) ask(ctx context.Context, c *conn) ([]ma.Multiaddr, error) {
	ctx, cancel := context.WithTimeout(network.WithNoDial(ctx, "the connection is there"), reserveTimeout)
	defer cancel()
	s, err := r.host.NewStream(ctx, toLibp2p(c.peer), circuitproto.ProtoIDv2Hop)
	if err != nil {
		return nil, fmt.Errorf("reserve: %w", err)
	}
	defer s.Reset()
	defer context.AfterFunc(ctx, func() { s.Reset() })()
	if err := s.SetDeadline(time.Now().Add(reserveTimeout)); err != nil {
		return nil, err
	}
	if err := util.NewDelimitedWriter(s).WriteMsg(&circuit.HopMessage{Type: circuit.HopMessage_RESERVE.Enum()}); err != nil {
		return nil, fmt.Errorf("reserve: %w", err)
	}
	rd := util.NewDelimitedReader(s, maxReserveReply)
	defer rd.Close()
	var m circuit.HopMessage
	if err := rd.ReadMsg(&m); err != nil {
		return nil, fmt.Errorf("reserve: %w", err)
	}
	if m.GetType() != circuit.HopMessage_STATUS || m.GetStatus() != circuit.Status_OK || m.GetLimit() != nil {
		return nil, fmt.Errorf("%w: status %s", errRefused, m.GetStatus())
	}
	return circuitAddrs(c, m.GetReservation().GetAddrs()), nil
}

// maxReserveReply bounds a relay's reply: its addresses and a voucher.
const maxReserveReply = 8 << 10

// circuitAddrs returns the addresses at which the relay connected by c serves circuits:
// first the one that this node uses, then those that it announced. Unlike libp2p's own
// relay client it includes non-public addresses.
func circuitAddrs(c *conn, announced [][]byte) []ma.Multiaddr {
	var out []ma.Multiaddr
	add := func(a ma.Multiaddr) {
		a = bareAddr(a)
		if a == nil || len(out) == maxAddrsPerRelay || isCircuit(a) || manet.IsIPUnspecified(a) || manet.IsIPLoopback(a) && !manet.IsIPLoopback(c.raw.RemoteMultiaddr()) {
			return
		}
		if full := through(c.peer, a); !slices.ContainsFunc(out, full.Equal) {
			out = append(out, full)
		}
	}
	if !c.inbound {
		add(c.raw.RemoteMultiaddr())
	}
	for _, b := range announced {
		if a, err := ma.NewMultiaddrBytes(b); err == nil {
			add(a)
		}
	}
	return out
}

// bareAddr returns a without a trailing peer id.
func bareAddr(a ma.Multiaddr) ma.Multiaddr {
	if n := len(a); n > 0 && a[n-1].Protocol().Code == ma.P_P2P {
		return a[:n-1]
	}
	return a
}

// refresh renews all reservations.
func (r *reserver) refresh() {
	r.refreshBefore.Store(int64(r.cfg.Clock.Mono()))
	notify(r.wake)
}
