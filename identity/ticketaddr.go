package identity

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Addresses in a ticket: host kind and transports 1 | host | port 2. A host is an IP
// address of 4 or 16 bytes, or a length and a DNS name.
const (
	hostIP4       = 1
	hostIP6       = 2
	hostDNS       = 3
	hostDNS4      = 4
	hostDNS6      = 5
	hostBits      = 0x07
	transportQUIC = 0x40
	transportTCP  = 0x80
)

var hostNames = [...]string{hostIP4: "ip4", hostIP6: "ip6", hostDNS: "dns", hostDNS4: "dns4", hostDNS6: "dns6"}

const maxHostName = 40 // bytes: a longer one does not fit into a ticket

// A ticketAddr is a host and port with the transports that listen there.
type ticketAddr struct {
	kind      byte
	host      string // IP address or name
	port      uint16
	transport byte // overQUIC, overTCP or both
}

// splitAddr parses a multiaddr; ok is false for one that a ticket cannot hold.
func splitAddr(addr string) (a ticketAddr, ok bool) {
	parts := strings.Split(addr, "/")
	if len(parts) < 5 || parts[0] != "" {
		return a, false
	}
	a.kind = byte(max(0, slices.Index(hostNames[:], parts[1])))
	a.host = parts[2]
	port, err := strconv.ParseUint(parts[4], 10, 16)
	if err != nil || strconv.FormatUint(port, 10) != parts[4] {
		return a, false
	}
	a.port = uint16(port)
	rest := parts[5:]
	switch {
	case parts[3] == "tcp":
		a.transport = transportTCP
	case parts[3] == "udp" && len(rest) > 0 && rest[0] == "quic-v1":
		a.transport, rest = transportQUIC, rest[1:]
	}
	if len(rest) == 2 && rest[0] == "p2p" { // the ticket names the inviter anyway
		rest = nil
	}
	return a, len(rest) == 0 && a.valid()
}

// valid reports whether a is a reachable address in canonical form.
func (a ticketAddr) valid() bool {
	if a.port == 0 || a.transport&(transportQUIC|transportTCP) == 0 || a.transport&^(transportQUIC|transportTCP) != 0 {
		return false
	}
	switch a.kind {
	case hostIP4, hostIP6:
		ip, err := netip.ParseAddr(a.host)
		return err == nil && ip.String() == a.host && ip.Is4() == (a.kind == hostIP4) &&
			!ip.Is4In6() && ip.Zone() == "" && !ip.IsUnspecified()
	case hostDNS, hostDNS4, hostDNS6:
		return len(a.host) <= maxHostName && isHostName(a.host)
	}
	return false
}

// isHostName reports whether s consists of lower-case DNS labels.
func isHostName(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if !IsLabel(label) {
			return false
		}
	}
	return true
}

// appendAddrs appends the encoding of as many of addrs as fit into max bytes to b.
func appendAddrs(b []byte, addrs []string, max int) []byte {
	var all []ticketAddr
	for _, addr := range addrs {
		a, ok := splitAddr(addr)
		if !ok {
			continue
		}
		same := func(o ticketAddr) bool { return o.kind == a.kind && o.host == a.host && o.port == a.port }
		if i := slices.IndexFunc(all, same); i >= 0 {
			all[i].transport |= a.transport
		} else {
			all = append(all, a)
		}
	}
	for _, a := range all {
		if next := a.append(b); len(next) <= max {
			b = next
		}
	}
	return b
}

func (a ticketAddr) append(b []byte) []byte {
	b = append(b, a.kind|a.transport)
	switch a.kind {
	case hostIP4, hostIP6:
		b = append(b, netip.MustParseAddr(a.host).AsSlice()...)
	default:
		b = append(append(b, byte(len(a.host))), a.host...)
	}
	return binary.BigEndian.AppendUint16(b, a.port)
}

// parseAddrs decodes the output of appendAddrs, QUIC before TCP.
func parseAddrs(b []byte) ([]string, error) {
	var addrs []string
	for len(b) > 0 {
		a, rest, ok := parseAddr(b)
		if !ok || !a.valid() {
			return nil, fmt.Errorf("%w: it contains a bad address", ErrTicket)
		}
		b = rest
		host := "/" + hostNames[a.kind] + "/" + a.host
		if a.transport&transportQUIC != 0 {
			addrs = append(addrs, fmt.Sprintf("%s/udp/%d/quic-v1", host, a.port))
		}
		if a.transport&transportTCP != 0 {
			addrs = append(addrs, fmt.Sprintf("%s/tcp/%d", host, a.port))
		}
	}
	return addrs, nil
}

func parseAddr(b []byte) (a ticketAddr, rest []byte, ok bool) {
	a.kind, a.transport = b[0]&hostBits, b[0]&^hostBits
	b = b[1:]
	n := map[byte]int{hostIP4: 4, hostIP6: 16}[a.kind]
	if n == 0 && len(b) > 0 {
		n, b = int(b[0]), b[1:]
	}
	if len(b) < n+2 {
		return a, nil, false
	}
	if a.kind == hostIP4 || a.kind == hostIP6 {
		ip, _ := netip.AddrFromSlice(b[:n])
		a.host = ip.String()
	} else {
		a.host = string(b[:n])
	}
	a.port = binary.BigEndian.Uint16(b[n:])
	return a, b[n+2:], true
}
