//go:build linux

package lab

import (
	"strconv"

	"github.com/balefire/balefire/internal/lab/netfilter"
)

// A Host is a machine in a network.
type Host struct {
	namespace
	Port *Port
	more int // how many networks it is connected to besides that of Port
}

// Host creates a machine and connects it to the network.
func (n *Net) Host(name string, at Attachment) *Host {
	n.lab.t.Helper()
	s := n.lab.newNamespace(name)
	return &Host{namespace: s, Port: n.attach(s, "eth0", at)}
}

// Connect connects the host to one more network.
func (h *Host) Connect(n *Net, at Attachment) *Port {
	n.lab.t.Helper()
	h.more++
	return n.attach(h.namespace, "eth"+strconv.Itoa(h.more), at)
}

// Readdress changes the address of the host in its network.
func (h *Host) Readdress(addr string) { h.lab.t.Helper(); h.Port.readdress(addr) }

// Move disconnects the host and connects it to another network: a laptop that is carried
// from the office to a café.
func (h *Host) Move(to *Net, at Attachment) {
	h.lab.t.Helper()
	h.Port.detach()
	h.Port = to.attach(h.namespace, "eth0", at)
}

// A Router connects its own network to another one and translates addresses, or only keeps
// out what was not asked for.
type Router struct {
	WAN *Port // its port in the outer network
	LAN *Net  // its inner network; the router has the first address
	namespace
	kind netfilter.NAT
}

// Router creates a router with an inner network of the prefix: 192.168.1.0/24. In the
// network behind another router it makes a NAT behind a NAT. The hosts behind a
// [netfilter.Firewall] have addresses of their own outside: the outer network knows the way.
func (n *Net) Router(name string, at Attachment, lan string, kind netfilter.NAT) *Router {
	n.lab.t.Helper()
	r := &Router{namespace: n.lab.newNamespace(name), LAN: n.lab.Net(name+"-lan", lan), kind: kind}
	r.WAN = n.attach(r.namespace, "wan", at)
	inside := r.LAN.prefix.Addr().Next()
	r.LAN.attach(r.namespace, "lan", Attachment{Addr: inside.String()})
	r.LAN.gateway = inside
	r.lab.check(r.Do(func() error {
		if err := netfilter.Route(); err != nil {
			return err
		}
		if inside.Is6() {
			if err := sysctl("ipv6/conf/all/forwarding", "1"); err != nil {
				return err
			}
		}
		return netfilter.Translate("wan", kind)
	}))
	if kind == netfilter.Firewall {
		n.lead(r.LAN.prefix, r.WAN)
	}
	return r
}

// Restrict replaces what the router refuses to pass. The zero filter refuses nothing.
func (r *Router) Restrict(f netfilter.Filter) {
	r.lab.t.Helper()
	r.lab.check(r.Do(func() error { return netfilter.Restrict("wan", f) }))
}

// Silence keeps the router from sending ICMP: whoever sends packets that are too large for
// the next link is not told.
func (r *Router) Silence() { r.lab.t.Helper(); r.lab.check(r.Do(netfilter.Silence)) }

// Forget drops all connections of the router, as after a restart.
func (r *Router) Forget() {
	r.lab.t.Helper()
	r.lab.check(r.Do(func() error {
		if err := netfilter.Translate("wan", r.kind); err != nil { // without the holes that it has noted
			return err
		}
		return netfilter.Forget()
	}))
}
