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

// Times of NAT-PMP.
const (
	pmpLifetime = time.Hour        // of what is asked for; it is asked for anew after half of that
	pmpEvery    = 15 * time.Second // how often the router is asked whether it is still the same
	pmpTimeout  = 2 * time.Second  // how long an answer is waited for
	pmpSlack    = 2                // seconds by which the router's own clock may be behind (RFC 6886, 3.6)
)

// A pmp is the ports that a router gave by NAT-PMP (RFC 6886).
type pmp struct {
	listen  func() []ma.Multiaddr
	gateway func() (net.IP, error)
	every   time.Duration
	clock   clock.Clock
	stop    context.CancelFunc
	done    chan struct{}

	mu          sync.Mutex
	external    netip.Addr           // of the router; invalid while none has answered
	mapped      map[localPort]uint16 // ports of the router
	expires     time.Duration        // monotonic, of what was given
	epochOffset time.Duration        // of the router's clock before ours: it falls when the router begins anew
}

// An localPort is where this node listens.
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

// gateway returns the router that leads out of this machine's network. Nothing is
// sent to the address that it asks about.
func gateway() (net.IP, error) {
	r, err := netroute.New()
	if err != nil {
		return nil, fmt.Errorf("read the routes of this machine: %w", err)
	}
	_, ip, _, err := r.Route(net.IPv4(192, 0, 0, 9)) // any that is not in a local network: this one is of port control (RFC 7723)
	if err != nil {
		return nil, fmt.Errorf("find the router: %w", err)
	}
	if ip = ip.To4(); ip == nil {
		return nil, errors.New("this machine has no router")
	}
	return ip, nil
}

// GetMapping returns the address that leads to a, nil if there is none.
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

// Close gives the ports back.
func (p *pmp) Close() error {
	p.stop()
	<-p.done
	return nil
}

// localPortOf returns the port of an address that a router could lead to.
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

// run asks the router for ports until ctx is done. One that never answers is asked
// once: see [portMap.due].
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
			pause = min(pause, time.Second) // the node is about to listen
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

// refresh asks the router for what is due and reports whether there still is one.
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

// noAnswer notes that no answer came. What was given lasts until its end.
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

// needsMapping notes an answer, and reports whether ports are to be asked for: the first
// time, of a router that has begun anew or has another address, where this node
// listens elsewhere, and after half of their life.
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

// requests returns which port of the router is asked for each port of this node: what it
// had, or else the same number.
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

// localPorts returns where this node listens.
func (p *pmp) localPorts() (all []localPort) {
	for _, a := range p.listen() {
		if in, ok := localPortOf(a); ok && !slices.Contains(all, in) {
			all = append(all, in)
		}
	}
	return all
}

// release ends the mappings. What the router does not hear of ends by itself.
func (p *pmp) release(router *natpmp.Client) {
	p.mu.Lock()
	given := maps.Clone(p.mapped)
	clear(p.mapped)
	p.mu.Unlock()
	for in := range given {
		router.AddPortMapping(in.network, int(in.port), 0, 0)
	}
}
