//go:build linux

package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/balefire/balefire/internal/lab/netfilter"
)

// A Net is one network around a switch.
type Net struct {
	namespace
	prefix  netip.Prefix
	gateway netip.Addr // the router that leads out of it; nil in a public network
	ports   map[string]*Port
	made    int // how many ports were ever created
	ways    []way
	mtu     int  // of all its links; 0: 1500
	apart   bool // hosts reach only the gateway
}

// A way leads from a network to a prefix behind one of its ports.
type way struct {
	to  netip.Prefix
	via *Port
}

// Net creates a network with the prefix: 11.0.0.0/24.
func (l *Lab) Net(name, prefix string) *Net {
	l.t.Helper()
	p, err := netip.ParsePrefix(prefix)
	l.check(err)
	n := &Net{namespace: l.newNamespace(name), prefix: p.Masked(), ports: map[string]*Port{}}
	n.ip("link", "add", "switch", "type", "bridge")
	n.ip("link", "set", "switch", "up")
	return n
}

// Attachment is where something is connected to a network.
type Attachment struct {
	Addr string // its address there: 11.0.0.1
	Wire Wire   // its wire; default a Cable
}

// A Wire is the wire of a port.
type Wire int

// The wires.
const (
	Cable Wire = iota // of the kernel: fast, with optional loss and rate
	Long              // forwarded by this process: a [Link] with all features of a [Shape]
)

// A Port is where a host or a router is connected to a network. In and out are seen from
// the host or router.
type Port struct {
	Link *Link // of a Long wire; nil with a Cable

	net     *Net
	far     namespace  // of the connected host or router
	dev     string     // its interface
	socket  string     // the switch's side
	addr    netip.Addr // its address
	in, out impairment
}

// An impairment is what the switch does to the packets of one direction.
type impairment struct {
	cut  []netip.Prefix // the other ends whose packets are dropped
	loss float64
}

// allAddresses is all addresses.
var allAddresses = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

// attach connects the interface dev of a namespace to the network.
func (n *Net) attach(s namespace, dev string, at Attachment) *Port {
	n.lab.t.Helper()
	addr, err := netip.ParseAddr(at.Addr)
	n.lab.check(err)
	if !n.prefix.Contains(addr) {
		n.lab.t.Fatalf("lab: %s is no address of %s", addr, n.prefix)
	}
	n.made++
	p := &Port{net: n, far: s, dev: dev, socket: "port" + strconv.Itoa(n.made), addr: addr}
	n.ports[p.socket] = p
	switch at.Wire {
	case Long:
		p.Link, err = newLink(s, dev, n.namespace, p.socket)
		n.lab.check(err)
		n.lab.t.Cleanup(p.Link.close)
	default:
		s.ip("link", "add", dev, "type", "veth", "peer", "name", p.socket, "netns", n.name)
	}
	n.ip("link", "set", p.socket, "master", "switch", "up")
	if addr.Is6() {
		n.lab.check(s.Do(func() error { return enableIPv6(dev) }))
	}
	s.ip("link", "set", dev, "up")
	p.address()
	p.limit()
	p.separate()
	return p
}

// enableIPv6 switches IPv6 on for the interface and for loopback, where programs look whether
// there is any.
func enableIPv6(dev string) error {
	return errors.Join(sysctl("ipv6/conf/lo/disable_ipv6", "0"), sysctl("ipv6/conf/"+dev+"/accept_ra", "0"),
		sysctl("ipv6/conf/"+dev+"/accept_dad", "0"), sysctl("ipv6/conf/"+dev+"/disable_ipv6", "0"))
}

// address sets the address of the interface and its routes.
func (p *Port) address() {
	p.net.lab.t.Helper()
	p.far.ip("addr", "add", netip.PrefixFrom(p.addr, p.net.prefix.Bits()).String(), "dev", p.dev)
	if p.net.gateway.IsValid() && p.net.gateway != p.addr {
		p.route("default", p.net.gateway)
	}
	for _, w := range p.net.ways {
		p.follow(w)
	}
}

// follow adds the way to the routes.
func (p *Port) follow(w way) {
	p.net.lab.t.Helper()
	if w.via != p {
		p.route(w.to.String(), w.via.addr)
	}
}

func (p *Port) route(to string, via netip.Addr) {
	p.net.lab.t.Helper()
	family := "-4"
	if via.Is6() {
		family = "-6"
	}
	p.far.ip(family, "route", "replace", to, "via", via.String())
}

// lead makes the prefix behind a port known in the network.
func (n *Net) lead(to netip.Prefix, via *Port) {
	n.lab.t.Helper()
	w := way{to, via}
	n.ways = append(n.ways, w)
	for _, p := range n.ports {
		p.follow(w)
	}
}

// MTU sets the largest packet of all links of the network. Routers tell the senders of larger
// ones, except after [Router.Silence].
func (n *Net) MTU(bytes int) {
	n.lab.t.Helper()
	n.mtu = bytes
	for _, p := range n.ports {
		p.limit()
	}
}

// limit sets the MTU of both ends of the wire.
func (p *Port) limit() {
	p.net.lab.t.Helper()
	if p.net.mtu > 0 {
		mtu := strconv.Itoa(p.net.mtu)
		p.far.ip("link", "set", p.dev, "mtu", mtu)
		p.net.ip("link", "set", p.socket, "mtu", mtu)
	}
}

// Isolate keeps the hosts of the network apart, like the clients of a café's Wi-Fi: each
// reaches only the gateway.
func (n *Net) Isolate() {
	n.lab.t.Helper()
	n.apart = true
	for _, p := range n.ports {
		p.separate()
	}
}

func (p *Port) separate() {
	p.net.lab.t.Helper()
	if p.net.apart && p.addr != p.net.gateway {
		p.net.ip("link", "set", p.socket, "type", "bridge_slave", "isolated", "on")
	}
}

// readdress replaces the address by another one of the same network.
func (p *Port) readdress(addr string) {
	p.net.lab.t.Helper()
	next, err := netip.ParseAddr(addr)
	p.net.lab.check(err)
	p.far.ip("addr", "flush", "dev", p.dev)
	p.addr = next
	p.address()
}

// detach disconnects the port from the network.
func (p *Port) detach() {
	p.net.lab.t.Helper()
	delete(p.net.ports, p.socket)
	if p.Link != nil {
		p.Link.close()
	} else {
		p.far.ip("link", "del", p.dev)
	}
	p.net.apply()
}

// Addr returns the address of the port.
func (p *Port) Addr() string { return p.addr.String() }

// Up reconnects the wire that Down disconnected.
func (p *Port) Up() { p.net.lab.t.Helper(); p.net.ip("link", "set", p.socket, "up") }

// Down disconnects the wire: the interface loses its carrier.
func (p *Port) Down() { p.net.lab.t.Helper(); p.net.ip("link", "set", p.socket, "down") }

// Cut silently drops packets between the port and the addresses or prefixes, in both
// directions; without arguments, all packets.
func (p *Port) Cut(others ...string) {
	p.net.lab.t.Helper()
	p.CutIn(others...)
	p.CutOut(others...)
}

// CutIn drops packets to the port from the addresses or prefixes; without arguments, all.
func (p *Port) CutIn(from ...string) {
	p.net.lab.t.Helper()
	p.in.cut = append(p.in.cut, p.net.lab.prefixes(from)...)
	p.net.apply()
}

// CutOut drops packets from the port to the addresses or prefixes; without arguments, all.
// The sender does not notice.
func (p *Port) CutOut(to ...string) {
	p.net.lab.t.Helper()
	p.out.cut = append(p.out.cut, p.net.lab.prefixes(to)...)
	p.net.apply()
}

// Heal ends every cut of the port.
func (p *Port) Heal() {
	p.net.lab.t.Helper()
	p.in.cut, p.out.cut = nil, nil
	p.net.apply()
}

// Loss drops packets at random: the fractions of received and of sent packets, from 0 to 1.
func (p *Port) Loss(in, out float64) {
	p.net.lab.t.Helper()
	p.in.loss, p.out.loss = in, out
	p.net.apply()
}

// Rate limits each direction to the given bits per second; 0 removes the limit.
func (p *Port) Rate(bits int64) {
	p.net.lab.t.Helper()
	for _, end := range []struct{ ns, dev string }{{p.net.name, p.socket}, {p.far.name, p.dev}} {
		tc := []string{"tc", "-n", end.ns, "qdisc"}
		if bits == 0 {
			p.net.lab.check(run(append(tc, "del", "dev", end.dev, "root")...))
			continue
		}
		burst := max(bits/8/100, 32<<10) // the bytes of 10 ms
		p.net.lab.check(run(append(tc, "replace", "dev", end.dev, "root", "tbf",
			"rate", strconv.FormatInt(bits, 10), "burst", strconv.FormatInt(burst, 10), "latency", "100ms")...))
	}
}

func (l *Lab) prefixes(texts []string) []netip.Prefix {
	l.t.Helper()
	if len(texts) == 0 {
		return []netip.Prefix{allAddresses}
	}
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			var addr netip.Addr
			addr, err = netip.ParseAddr(text)
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		l.check(err)
		out = append(out, p)
	}
	return out
}

// apply writes the impairments of all ports to the switch in one transaction.
func (n *Net) apply() {
	n.lab.t.Helper()
	var rules []netfilter.Rule
	for _, socket := range slices.Sorted(maps.Keys(n.ports)) {
		p := n.ports[socket]
		if n.prefix.Addr().Is6() && (p.in.any() || p.out.any()) {
			n.lab.t.Fatalf("lab: %s: cuts and loss are of IPv4", n.name)
		}
		rules = append(rules, p.out.rules(netfilter.Enters(socket), netfilter.To)...)
		rules = append(rules, p.in.rules(netfilter.Leaves(socket), netfilter.From)...)
	}
	chain := netfilter.Chain{Name: "pass", Hook: netfilter.Forward, Rules: rules}
	if err := n.Do(func() error {
		return netfilter.Replace(netfilter.Table{Family: netfilter.Bridge, Name: "impair", Chains: []netfilter.Chain{chain}})
	}); err != nil {
		n.lab.check(fmt.Errorf("impair the links: %w", err))
	}
}

func (i impairment) any() bool { return len(i.cut) > 0 || i.loss > 0 }

// rules returns the switch's rules for packets that match pass and whose other end is
// matched by other.
func (i impairment) rules(passes netfilter.Part, other func(netip.Prefix) netfilter.Part) (out []netfilter.Rule) {
	for _, p := range i.cut {
		out = append(out, netfilter.Rule{passes, other(p), netfilter.Drop()})
	}
	if i.loss > 0 {
		out = append(out, netfilter.Rule{passes, netfilter.Routable(), netfilter.Lost(i.loss), netfilter.Drop()})
	}
	return out
}
