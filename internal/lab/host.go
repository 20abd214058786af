//go:build linux

package lab

import (
	"github.com/balefire/balefire/internal/lab/netfilter"
)

// A Host is a machine in a network.
type Host struct {
	namespace
	Port *Port
}

// Host makes a machine and plugs it into the network.
func (n *Net) Host(name string, at Attachment) *Host {
	n.lab.t.Helper()
	s := n.lab.newNamespace(name)
	return &Host{namespace: s, Port: n.attach(s, "eth0", at)}
}

// Readdress gives the host another address in the network that it is in.
func (h *Host) Readdress(addr string) { h.lab.t.Helper(); h.Port.readdress(addr) }

// Move takes the host out of its network and plugs it into another one: a laptop
// that is carried from the office to a café.
func (h *Host) Move(to *Net, at Attachment) {
	h.lab.t.Helper()
	h.Port.detach()
	h.Port = to.attach(h.namespace, "eth0", at)
}

// A Router leads from a network of its own to another one, and hides the one
// behind its address in the other.
type Router struct {
	WAN *Port // where it is plugged into the other network
	LAN *Net  // the one behind it; the router is the first address
	namespace
}

// Router makes a router with a network of the prefix behind it: 192.168.1.0/24.
// Plugged into the network behind another router it makes a NAT behind a NAT.
func (n *Net) Router(name string, at Attachment, lan string, kind netfilter.NAT) *Router {
	n.lab.t.Helper()
	r := &Router{namespace: n.lab.newNamespace(name), LAN: n.lab.Net(name+"-lan", lan)}
	r.WAN = n.attach(r.namespace, "wan", at)
	inside := r.LAN.prefix.Addr().Next()
	r.LAN.attach(r.namespace, "lan", Attachment{Addr: inside.String()})
	r.LAN.gateway = inside
	r.lab.check(r.Do(func() error {
		if err := netfilter.Route(); err != nil {
			return err
		}
		return netfilter.Translate("wan", kind)
	}))
	return r
}

// Rebind gives the router another address in the outer network and lets it forget
// all connections, as one does that dialled in anew.
func (r *Router) Rebind(addr string) {
	r.lab.t.Helper()
	r.WAN.readdress(addr)
	r.Forget()
}

// Forget lets the router forget all connections, as one does that was restarted.
func (r *Router) Forget() { r.lab.t.Helper(); r.lab.check(r.Do(netfilter.Forget)) }
