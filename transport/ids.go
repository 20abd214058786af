package transport

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
)

// errForeignKey is returned for the id of a key that is not Ed25519.
var errForeignKey = errors.New("transport: not the id of an Ed25519 key")

// toLibp2p returns libp2p's form of p.
func toLibp2p(p proto.PeerID) peer.ID { return peer.ID(p.Bytes()) }

// fromLibp2p returns the key contained in libp2p's id.
func fromLibp2p(id peer.ID) (proto.PeerID, error) {
	var p proto.PeerID
	if len(id) != len(p.Bytes()) {
		return p, errForeignKey
	}
	copy(p[:], id[len(id)-len(p):])
	if toLibp2p(p) != id {
		return proto.PeerID{}, errForeignKey
	}
	return p, nil
}

// parseAddrs parses multiaddrs, with or without the id of p at the end.
func parseAddrs(p proto.PeerID, addrs []string) ([]ma.Multiaddr, error) {
	out := make([]ma.Multiaddr, 0, len(addrs))
	for _, s := range addrs {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			return nil, fmt.Errorf("address %.128q: %w; write it like /ip4/192.0.2.1/udp/4001/quic-v1", s, err)
		}
		bare, id := peer.SplitAddr(a)
		if bare == nil || id != "" && id != toLibp2p(p) {
			return nil, fmt.Errorf("address %.128q belongs to another peer than %s", s, p)
		}
		out = append(out, bare)
	}
	return out, nil
}

// Multiaddrs reads addresses for packages that keep them as text.
type Multiaddrs struct{}

// Usable returns the addresses that can lead to peer id, at most proto.MaxAddrs. Loopback
// and link-local addresses are accepted only for a peer known to be on this machine, so
// that no one can make a member dial itself.
func (Multiaddrs) Usable(id proto.PeerID, addrs []string, here bool) (good []string) {
	for _, s := range addrs {
		a, err := parseAddrs(id, []string{s})
		if err != nil || len(good) == proto.MaxAddrs || manet.IsIPUnspecified(a[0]) || !here && (manet.IsIPLoopback(a[0]) || manet.IsIP6LinkLocal(a[0])) {
			continue
		}
		good = append(good, s)
	}
	return good
}

// Loopback reports whether an address leads to its own machine.
func (Multiaddrs) Loopback(s string) bool {
	a, err := ma.NewMultiaddr(s)
	return err == nil && manet.IsIPLoopback(a)
}

// usable returns the announced addresses of a peer that can lead to it: at most max, well
// formed, and loopback only for a peer on this machine.
func usable(addrs []string, remote ma.Multiaddr, max int) []string {
	here := manet.IsIPLoopback(remote)
	var out []string
	for _, s := range addrs {
		a, err := ma.NewMultiaddr(s)
		if err != nil || len(out) == max || manet.IsIPUnspecified(a) || manet.IsIPLoopback(a) && !here {
			continue
		}
		out = append(out, s)
	}
	return out
}

func comparePeers(a, b proto.PeerID) int { return bytes.Compare(a[:], b[:]) }

// maxFound bounds the addresses accepted for a discovered peer.
const maxFound = 16

// plausible returns the addresses in told that can lead to another machine, so that no
// one can make this node dial itself. A node that listens only on loopback finds its
// peers there.
func plausible(own, told []ma.Multiaddr) []ma.Multiaddr {
	alone := !slices.ContainsFunc(own, func(a ma.Multiaddr) bool { return !manet.IsIPLoopback(a) })
	var out []ma.Multiaddr
	for _, a := range told {
		if len(a) == 0 || len(out) == maxFound || manet.IsIPUnspecified(a) || manet.IsIPLoopback(a) && !alone {
			continue
		}
		out = append(out, a)
	}
	return out
}

// networkOf returns the network of a: quic or tcp.
func networkOf(a ma.Multiaddr) string {
	if isTCP(a) {
		return "tcp"
	}
	return "quic"
}

func addrStrings(addrs []ma.Multiaddr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}
