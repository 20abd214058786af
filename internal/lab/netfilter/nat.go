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

// The kinds. Both reject unsolicited packets. A cone keeps the source port, so two hosts
// behind it should not use the same one: the second gets another port for each destination
// that the first talks to.
const (
	Cone      NAT = iota // a sender has one outer port for all destinations: hole punching works
	Symmetric            // a different outer port for each destination: hole punching does not work
)

// Translate makes the network that the calling thread is in a NAT router whose
// outer interface is wan. It must also drop what was not asked for: else the
// kernel notes an early packet of a peer as a connection with the router itself,
// maps the answer to another port, and no hole can ever be punched.
func Translate(wan string, kind NAT) error {
	hide := MasqueradeKept()
	if kind == Symmetric {
		hide = MasqueradeRandom()
	}
	refuse := []Rule{{Enters(wan), Unsolicited(), Unexposed(), Drop()}}
	return Replace(Table{Family: IPv4, Name: "nat", Chains: []Chain{
		{Name: "hide", NAT: true, Hook: Postrouting, Priority: 100, Rules: []Rule{{Leaves(wan), hide}}},
		{Name: "local", Hook: Input, Rules: refuse},
		{Name: "pass", Hook: Forward, Rules: refuse},
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
	const early = -100 // before the router decides about the way
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
