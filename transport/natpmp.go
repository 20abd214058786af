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
	pmpLife   = time.Hour        // of what is asked for; it is asked for anew after half of that
	pmpEvery  = 15 * time.Second // how often the router is asked whether it is still the same
	pmpAnswer = 2 * time.Second  // how long an answer is waited for
	pmpSlack  = 2                // seconds by which the router's own clock may be behind (RFC 6886, 3.6)
)

// A pmp is the ports that a router gave by NAT-PMP (RFC 6886).
type pmp struct {
	listen  func() []ma.Multiaddr
	gateway func() (net.IP, error)
	every   time.Duration
	clock   clock.Clock
	stop    context.CancelFunc
	done    chan struct{}

	mu    sync.Mutex
	outer netip.Addr           // of the router; invalid while none has answered
	given map[innerPort]uint16 // ports of the router
	ends  time.Duration        // monotonic, of what was given
	ahead time.Duration        // of the router's clock before ours: it falls when the router begins anew
}

// An innerPort is where this node listens.
type innerPort struct {
	network string // "tcp" or "udp"
	port    uint16
}

func newPMP(listen func() []ma.Multiaddr, gateway func() (net.IP, error), every time.Duration, c clock.Clock) *pmp {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pmp{listen: listen, gateway: gateway, every: every, clock: c, stop: cancel, done: make(chan struct{}), given: make(map[innerPort]uint16)}
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
	in, ok := innerPortOf(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	port, mapped := p.given[in]
	if !ok || !mapped {
		return nil
	}
	at := ma.StringCast(fmt.Sprintf("/ip4/%s/%s/%d", p.outer, in.network, port))
	return slices.Concat(at, a[2:])
}

// HasDiscoveredNAT reports whether a router answers.
func (p *pmp) HasDiscoveredNAT() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outer.IsValid()
}

// Close gives the ports back.
func (p *pmp) Close() error {
	p.stop()
	<-p.done
	return nil
}

// innerPortOf returns the port of an address that a router could lead to.
func innerPortOf(a ma.Multiaddr) (in innerPort, ok bool) {
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
	router := natpmp.NewClientWithTimeout(ip, pmpAnswer)
	for p.look(router) {
		pause := p.every
		if len(p.inner()) == 0 {
			pause = min(pause, time.Second) // the node is about to listen
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			p.giveBack(router)
			return
		case <-timer.C:
		}
	}
}

// look asks the router for what is due and reports whether there still is one.
func (p *pmp) look(router *natpmp.Client) bool {
	r, err := router.GetExternalAddress()
	now := p.clock.Mono()
	if err != nil {
		return p.silent(now)
	}
	if p.changed(r, now) {
		for in, port := range p.asks() {
			m, err := router.AddPortMapping(in.network, int(in.port), int(port), int(pmpLife/time.Second))
			p.mu.Lock()
			if delete(p.given, in); err == nil {
				p.given[in] = m.MappedExternalPort
			}
			p.mu.Unlock()
		}
	}
	return true
}

// silent notes that no answer came. What was given lasts until its end.
func (p *pmp) silent(now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outer.IsValid() && now < p.ends {
		return true
	}
	p.outer = netip.Addr{}
	clear(p.given)
	return false
}

// changed notes an answer, and reports whether ports are to be asked for: the first
// time, of a router that has begun anew or has another address, where this node
// listens elsewhere, and after half of their life.
func (p *pmp) changed(r *natpmp.GetExternalAddressResult, now time.Duration) bool {
	inner := p.inner()
	p.mu.Lock()
	defer p.mu.Unlock()
	outer := netip.AddrFrom4(r.ExternalIPAddress)
	ahead := time.Duration(r.SecondsSinceStartOfEpoc)*time.Second - now
	again := ahead < p.ahead-pmpSlack*time.Second
	p.ahead = ahead
	if !again && outer == p.outer && now < p.ends-pmpLife/2 && !slices.ContainsFunc(inner, func(in innerPort) bool { _, ok := p.given[in]; return !ok }) {
		return false
	}
	if p.outer != outer {
		clear(p.given)
	}
	p.outer, p.ends = outer, now+pmpLife
	return true
}

// asks returns which port of the router is asked for each port of this node: what it
// had, or else the same number.
func (p *pmp) asks() map[innerPort]uint16 {
	inner := p.inner()
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[innerPort]uint16)
	for _, in := range inner {
		if all[in] = p.given[in]; all[in] == 0 {
			all[in] = in.port
		}
	}
	return all
}

// inner returns where this node listens.
func (p *pmp) inner() (all []innerPort) {
	for _, a := range p.listen() {
		if in, ok := innerPortOf(a); ok && !slices.Contains(all, in) {
			all = append(all, in)
		}
	}
	return all
}

// giveBack ends the mappings. What the router does not hear of ends by itself.
func (p *pmp) giveBack(router *natpmp.Client) {
	p.mu.Lock()
	given := maps.Clone(p.given)
	clear(p.given)
	p.mu.Unlock()
	for in := range given {
		router.AddPortMapping(in.network, int(in.port), 0, 0)
	}
}
