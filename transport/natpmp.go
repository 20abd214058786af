package transport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	natpmp "github.com/jackpal/go-nat-pmp"
	"github.com/libp2p/go-netroute"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/clock"
)

// Timing of NAT-PMP.
const (
	pmpLifetime = time.Hour        // of a mapping; renewed after half of it
	pmpEvery    = 15 * time.Second // between two checks of the router
	pmpTimeout  = 2 * time.Second  // for an answer
	pmpSlack    = 2                // seconds that the router's clock may lag (RFC 6886, 3.6)
)

// A pmp holds ports mapped by a router using NAT-PMP (RFC 6886).
type pmp struct {
	listen  func() []ma.Multiaddr
	gateway func() (net.IP, error)
	every   time.Duration
	clock   clock.Clock
	stop    context.CancelFunc
	done    chan struct{}

	mu          sync.Mutex
	external    netip.Addr           // of the router; invalid until it answers
	mapped      map[localPort]uint16 // external ports
	expires     time.Duration        // monotonic, of the mappings
	epochOffset time.Duration        // router's epoch time minus this clock; decreases when the router restarts
}

// A localPort is a port that this node listens on.
type localPort struct {
	network string // "tcp" or "udp"
	port    uint16
}

func newPMP(listen func() []ma.Multiaddr, gateway func() (net.IP, error), every time.Duration, c clock.Clock) *pmp {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pmp{listen: listen, gateway: gateway, every: every, clock: c, stop: cancel, done: make(chan struct{}), mapped: make(map[localPort]uint16)}
	go p.run(ctx)
	return p
}

// gateway returns this machine's default router. Nothing is sent to the address that it
// looks up.
func gateway() (net.IP, error) {
	r, err := netroute.New()
	if err != nil {
		return nil, fmt.Errorf("read the routes of this machine: %w", err)
	}
	_, ip, _, err := r.Route(net.IPv4(192, 0, 0, 9)) // any non-local address: this one is reserved for port control (RFC 7723)
	if err != nil {
		return nil, fmt.Errorf("find the router: %w", err)
	}
	if ip = ip.To4(); ip == nil {
		return nil, errors.New("this machine has no router")
	}
	return ip, nil
}

// GetMapping returns the external address mapped to a, nil if there is none.
func (p *pmp) GetMapping(a ma.Multiaddr) ma.Multiaddr {
	in, ok := localPortOf(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	port, mapped := p.mapped[in]
	if !ok || !mapped {
		return nil
	}
	at := ma.StringCast(fmt.Sprintf("/ip4/%s/%s/%d", p.external, in.network, port))
	return slices.Concat(at, a[2:])
}

// HasDiscoveredNAT reports whether a router answers.
func (p *pmp) HasDiscoveredNAT() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.external.IsValid()
}

// Close releases the ports.
func (p *pmp) Close() error {
	p.stop()
	<-p.done
	return nil
}

// localPortOf returns the port of an address that a router could map.
func localPortOf(a ma.Multiaddr) (in localPort, ok bool) {
	if len(a) < 2 || a[0].Protocol().Code != ma.P_IP4 || manet.IsIPLoopback(a) {
		return in, false
	}
	switch a[1].Protocol().Code {
	case ma.P_UDP:
		in.network = "udp"
	case ma.P_TCP:
		in.network = "tcp"
	default:
		return in, false
	}
	port, err := strconv.ParseUint(a[1].Value(), 10, 16)
	in.port = uint16(port)
	return in, err == nil && port > 0
}

// run requests mappings until ctx is done. A router that never answers is asked once: see
// [portMap.due].
func (p *pmp) run(ctx context.Context) {
	defer close(p.done)
	ip, err := p.gateway()
	if err != nil {
		return
	}
	router := natpmp.NewClientWithTimeout(ip, pmpTimeout)
	for p.refresh(router) {
		pause := p.every
		if len(p.localPorts()) == 0 {
			pause = min(pause, time.Second) // the node does not listen yet
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			p.release(router)
			return
		case <-timer.C:
		}
	}
}

// refresh requests due mappings and reports whether the router is still there.
func (p *pmp) refresh(router *natpmp.Client) bool {
	r, err := router.GetExternalAddress()
	now := p.clock.Mono()
	if err != nil {
		return p.noAnswer(now)
	}
	if p.needsMapping(r, now) {
		for in, port := range p.requests() {
			m, err := router.AddPortMapping(in.network, int(in.port), int(port), int(pmpLifetime/time.Second))
			p.mu.Lock()
			if delete(p.mapped, in); err == nil {
				p.mapped[in] = m.MappedExternalPort
			}
			p.mu.Unlock()
		}
	}
	return true
}

// noAnswer handles a missing answer. Mappings remain until they expire.
func (p *pmp) noAnswer(now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.external.IsValid() && now < p.expires {
		return true
	}
	p.external = netip.Addr{}
	clear(p.mapped)
	return false
}

// needsMapping handles an answer, and reports whether to request mappings: the first
// time, when the router restarted or its address changed, when this node listens on other
// ports, and after half of the mappings' lifetime.
func (p *pmp) needsMapping(r *natpmp.GetExternalAddressResult, now time.Duration) bool {
	inner := p.localPorts()
	p.mu.Lock()
	defer p.mu.Unlock()
	outer := netip.AddrFrom4(r.ExternalIPAddress)
	ahead := time.Duration(r.SecondsSinceStartOfEpoc)*time.Second - now
	again := ahead < p.epochOffset-pmpSlack*time.Second
	p.epochOffset = ahead
	if !again && outer == p.external && now < p.expires-pmpLifetime/2 && !slices.ContainsFunc(inner, func(in localPort) bool { _, ok := p.mapped[in]; return !ok }) {
		return false
	}
	if p.external != outer {
		clear(p.mapped)
	}
	p.external, p.expires = outer, now+pmpLifetime
	return true
}

// requests returns the external port to request for each local port: the current one, or
// the same number.
func (p *pmp) requests() map[localPort]uint16 {
	inner := p.localPorts()
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[localPort]uint16)
	for _, in := range inner {
		if all[in] = p.mapped[in]; all[in] == 0 {
			all[in] = in.port
		}
	}
	return all
}

// localPorts returns the ports that this node listens on.
func (p *pmp) localPorts() (all []localPort) {
	for _, a := range p.listen() {
		if in, ok := localPortOf(a); ok && !slices.Contains(all, in) {
			all = append(all, in)
		}
	}
	return all
}

// release ends the mappings. Those that the router does not receive expire by themselves.
func (p *pmp) release(router *natpmp.Client) {
	p.mu.Lock()
	given := maps.Clone(p.mapped)
	clear(p.mapped)
	p.mu.Unlock()
	for in := range given {
		router.AddPortMapping(in.network, int(in.port), 0, 0)
	}
}
