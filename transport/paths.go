package transport

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
	"github.com/balefire/balefire/wire"
)

// A Path is one path to a peer: a connection, or an address that may become one.
type Path struct {
	Addr      string
	Network   string       // quic or tcp, of the first hop
	Direct    bool         // no relay in between
	Relay     proto.PeerID // the relay, if not direct
	Connected bool
	InUse     bool // new streams use it
	Measured  route.Path
	Score     route.Score   // of Measured, as paths are compared; through a silent relay less
	Age       time.Duration // of the connection
}

// A PathReport explains how a peer is reached.
type PathReport struct {
	Paths   []Path    // connections first, beginning with the one in use
	Punches []Punch   // attempts to establish a direct path, oldest first
	Cause   wire.Note // why this path, or none, is in use
}

// Paths returns every connection to p and every address that may become one.
func (t *Transport) Paths(p proto.PeerID) PathReport {
	var r PathReport
	t.peers.mu.Lock()
	n := t.peers.byID[p]
	var conns []*conn
	var best *conn
	var lastErr error
	if n != nil {
		conns, best, lastErr = slices.Clone(n.conns), n.best(), n.lastErr
	}
	t.peers.mu.Unlock()
	for _, c := range conns {
		path := t.pathOfConn(c)
		path.InUse = c == best
		r.Paths = append(r.Paths, path)
	}
	slices.SortStableFunc(r.Paths, func(a, b Path) int { return cmp.Compare(b.rank(), a.rank()) })
	r.Paths = append(r.Paths, t.candidates(p, r.Paths)...)
	r.Punches = t.puncher.attempts(p)
	r.Cause = explainPath(best, len(conns), r.Punches, lastErr)
	return r
}

func (p Path) rank() int {
	switch {
	case p.InUse:
		return 3
	case p.Direct:
		return 2
	}
	return 1
}

func (t *Transport) pathOfConn(c *conn) Path {
	p := Path{
		Addr: pathOf(c), Network: c.network(), Direct: c.direct(), Connected: true,
		Measured: c.meter.path(), Age: c.clock.Mono() - c.since,
	}
	p.Relay, _ = relayOf(c.raw.RemoteMultiaddr())
	p.Measured.RTT = cmp.Or(p.Measured.RTT, time.Duration(c.rtt.Load()))
	p.Score = t.cfg.Weights.Score(p.Measured)
	if !p.Direct {
		p.Measured, p.Score = t.relays.circuitScore(p.Relay, c.peer)
	}
	return p
}

// candidates returns the addresses at which p would be dialed and that no existing path
// uses.
func (t *Transport) candidates(p proto.PeerID, there []Path) (out []Path) {
	contact := t.members.contact(p)
	list, err := parseAddrs(p, contact.Addrs)
	if err != nil || len(contact.Addrs)+len(contact.Relays) == 0 {
		return nil
	}
	list = append(slices.DeleteFunc(list, isCircuit), t.relays.circuitsTo(contact, true)...)
	for _, a := range list {
		relay, circuit := relayOf(a)
		c := Path{Addr: a.String(), Network: networkOf(a), Direct: !circuit, Relay: relay}
		if circuit {
			if hop := t.peers.best(relay); hop != nil {
				c.Network = hop.network()
				c.Measured, c.Score = t.relays.circuitScore(relay, p)
			}
		}
		if !slices.ContainsFunc(there, func(o Path) bool { return o.Addr == c.Addr || circuit && o.Relay == relay }) {
			out = append(out, c)
		}
	}
	return out
}

// explainPath explains why this path is in use.
func explainPath(best *conn, conns int, punches []Punch, lastErr error) wire.Note {
	switch {
	case best == nil && lastErr != nil:
		return wire.Note{Code: wire.PathFailed, NoteArgs: wire.NoteArgs{Detail: lastErr.Error()}}
	case best == nil:
		return wire.Note{Code: wire.PathUntried}
	case best.direct() && conns > 1:
		return wire.Note{Code: wire.PathNewest}
	case best.direct():
		return wire.Note{Code: wire.PathOnly}
	case len(punches) == 0:
		return wire.Note{Code: wire.PathRelayed}
	}
	last := punches[len(punches)-1]
	return wire.Note{Code: wire.PathNotPunched, NoteArgs: wire.NoteArgs{Time: new(last.Time.UTC()), Detail: last.Detail}}
}

// A Reach describes how others can reach this node.
type Reach struct {
	Listen       []string      // multiaddrs that this node listens on
	Addrs        []string      // announced multiaddrs, including those through relays
	Observed     []Observation // this node's addresses as seen by others
	NAT          NAT
	Public       bool // others can dial it, as far as it knows
	Reservations []Reservation
	Service      RelayService
	Mapped       []string // addresses mapped by the router; empty: none, or not requested
	UDP, TCP     bool     // there is a verified direct connection over it
	IPv6         bool     // and over IPv6
	Reachable    []string // addresses that AutoNAT v2 found reachable
	Unreachable  []string // and unreachable
}

// A Reservation is a slot at a relay that accepts connections for this node.
type Reservation struct {
	Relay   proto.PeerID
	Expires time.Time
	Score   route.Score
}

// A RelayService describes this node's work as a relay.
type RelayService struct {
	On           bool
	Reservations int // held here by others
	Circuits     int // currently open
	Bytes        uint64
}

// Reach returns how others can reach this node, as far as known.
func (t *Transport) Reach() Reach {
	r := Reach{
		Listen: addrStrings(slices.DeleteFunc(t.host.Network().ListenAddresses(), isCircuit)), Addrs: t.Addrs(),
		Observed: t.puncher.seen.list(), Mapped: addrStrings(t.reach.mapped()),
		Service: RelayService{
			On: t.cfg.Relay, Reservations: int(t.reach.served.reservations.Load()),
			Circuits: int(t.reach.served.circuits.Load()), Bytes: t.reach.served.bytes.Load(),
		},
	}
	own := t.puncher.own()
	r.NAT = guessNAT(r.Observed, own)
	held := t.reach.reserver.reservations()
	var demand relayDemand
	if len(held) > 0 { // gossip runs
		demand = t.relays.demand()
	}
	for p, h := range held {
		s := Reservation{Relay: p, Expires: h.until, Score: t.relays.scoreFor(p, demand)}
		r.Reservations = append(r.Reservations, s)
	}
	slices.SortFunc(r.Reservations, func(a, b Reservation) int { return comparePeers(a.Relay, b.Relay) })
	for _, c := range t.peers.verifiedConns() {
		if c.direct() {
			r.UDP = r.UDP || c.network() == "quic"
			r.TCP = r.TCP || c.network() == "tcp"
			r.IPv6 = r.IPv6 || isIPv6(c.raw.RemoteMultiaddr())
		}
	}
	if h, ok := t.host.(addrConfirmer); ok {
		yes, no, _ := h.ConfirmedAddrs()
		r.Reachable, r.Unreachable = addrStrings(yes), addrStrings(no)
	}
	r.Public = r.public(own)
	return r
}

// public reports whether others can dial this node. Until a peer has seen its address, a public one of
// IPv4 among those of this machine, own, decides: no NAT is in front of that.
func (r *Reach) public(own []netip.Addr) bool {
	unseen := len(r.Observed)+len(r.Unreachable) == 0
	return r.NAT == NATNone || len(r.Reachable)+len(r.Mapped) > 0 || unseen && slices.ContainsFunc(own, isPublicIPv4)
}
