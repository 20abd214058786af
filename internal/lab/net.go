//go:build linux

package lab

import (
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
	s.ip("link", "set", dev, "up")
	p.address()
	return p
}

// address sets the address of the interface and its default route.
func (p *Port) address() {
	p.net.lab.t.Helper()
	p.far.ip("addr", "add", netip.PrefixFrom(p.addr, p.net.prefix.Bits()).String(), "dev", p.dev)
	if p.net.gateway.IsValid() && p.net.gateway != p.addr {
		p.far.ip("route", "replace", "default", "via", p.net.gateway.String())
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
