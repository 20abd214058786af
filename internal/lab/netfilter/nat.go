//go:build linux

package netfilter

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// A NAT is the kind of address translation of a router.
type NAT int

// The kinds, in the words of RFC 4787. All reject unsolicited packets. Those with
// endpoint-independent mapping keep the source port, so two hosts behind one should not use
// the same one: the second gets another port for each destination that the first talks to.
const (
	Cone           NAT = iota // endpoint-independent mapping, filters by address and port: hole punching works
	Symmetric                 // a different outer port for each destination: hole punching does not work
	RestrictedCone            // endpoint-independent mapping, filters by address: any port of it may answer
	FullCone                  // endpoint-independent mapping and filtering: a used port is open for everyone
	AddressMapping            // a different outer port for each address, the same for all ports there; filters as Cone
	AcceptingCone             // as Cone until an unsolicited packet comes first: its sender then sees another port, as with a Linux host whose INPUT accepts
	Firewall                  // translates nothing, of IPv4 and IPv6
)

// Translate makes the network that the calling thread is in a NAT router whose
// outer interface is wan. Except as [AcceptingCone] it must also drop what was not asked for: else the
// kernel notes an early packet of a peer as a connection with the router itself,
// maps the answer to another port, and no hole can ever be punched. And it must drop what does not
// fit, such as a second SYN: else the router itself answers that with RST.
func Translate(wan string, kind NAT) error {
	refuse := []Rule{{Enters(wan), Invalid(), Drop()}, {Enters(wan), Unsolicited(), Unexposed(), Drop()}}
	t := Table{Family: IPv4, Name: "nat", Chains: []Chain{
		{Name: "local", Hook: Input, Rules: refuse},
		{Name: "pass", Hook: Forward, Rules: refuse},
	}}
	if kind == Firewall {
		t.Family, t.Name = Inet, "firewall"
		return Replace(t)
	}
	hide := MasqueradeKept()
	switch kind {
	case AcceptingCone:
		t.Chains = t.Chains[1:]
	case Symmetric:
		hide = MasqueradeRandom()
	case AddressMapping:
		hide = MasqueradeByAddress()
	case RestrictedCone, FullCone:
		holes := Holes{Name: "holes", PerAddress: kind == RestrictedCone}
		t.Holes = []Holes{holes}
		t.Chains = append(t.Chains,
			Chain{Name: "note", Hook: Postrouting, Rules: []Rule{{Leaves(wan), Note(holes)}}},
			Chain{Name: "admit", NAT: true, Hook: Prerouting, Priority: early, Rules: []Rule{{Enters(wan), Admit(holes)}}})
	}
	t.Chains = append(t.Chains, Chain{Name: "hide", NAT: true, Hook: Postrouting, Priority: 100, Rules: []Rule{{Leaves(wan), hide}}})
	return Replace(t)
}

// early is the priority of chains that are passed before the router decides about the way.
const early = -100

// A Filter is what a router refuses to pass between the hosts behind it and the rest.
type Filter struct {
	NoUDP   bool
	OnlyTCP uint16 // nothing but TCP to this port leaves; 0: no such limit
	Reject  bool   // the sender is told by ICMP; default: packets are dropped silently
}

// Restrict replaces the filter of the router, which the calling thread is in. wan is its
// outer interface.
func Restrict(wan string, f Filter) error {
	refuse := Drop()
	if f.Reject {
		refuse = Reject()
	}
	var rules []Rule
	if f.NoUDP {
		rules = append(rules, Rule{Over(unix.IPPROTO_UDP), refuse})
	}
	if f.OnlyTCP > 0 {
		rules = append(rules, Rule{Leaves(wan), Over(unix.IPPROTO_TCP), ToPort(f.OnlyTCP), Accept()}, Rule{Leaves(wan), refuse})
	}
	return Replace(Table{Family: Inet, Name: "restricted", Chains: []Chain{{Name: "restrict", Hook: Forward, Rules: rules}}})
}

// Silence drops every ICMP message that the network of the calling thread would send: the
// senders of packets that are too large for the next link are not told.
func Silence() error {
	return Replace(Table{Family: IPv4, Name: "silenced", Chains: []Chain{
		{Name: "silence", Hook: Output, Rules: []Rule{{Over(unix.IPPROTO_ICMP), Drop()}}},
	}})
}

// A Forwarding is a port of a router that is forwarded to a host behind it.
type Forwarding struct {
	TCP  bool // else UDP
	Port uint16
	To   netip.AddrPort
}

// Expose forwards exactly these ports of the interface wan. The router of [Translate]
// rejects all other unsolicited packets.
func Expose(wan string, ports []Forwarding) error {
	var rules []Rule
	for _, f := range ports {
		kind := byte(unix.IPPROTO_UDP)
		if f.TCP {
			kind = unix.IPPROTO_TCP
		}
		rules = append(rules, Rule{Enters(wan), Over(kind), ToPort(f.Port), Redirect(f.To)})
	}
	return Replace(Table{Family: IPv4, Name: "exposed", Chains: []Chain{
		{Name: "lead", NAT: true, Hook: Prerouting, Priority: early, Rules: rules},
	}})
}

// Route enables forwarding in the network of the calling thread.
func Route() error {
	const name = "/proc/sys/net/ipv4/ip_forward"
	// In a container it may be set from outside and read-only.
	if b, err := os.ReadFile(name); err == nil && len(b) > 0 && b[0] == '1' {
		return nil
	}
	if err := os.WriteFile(name, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("pass packets on: %w", err)
	}
	return nil
}
