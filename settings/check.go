package settings

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/balefire/balefire/proto"
)

// maxLabels is the highest number of labels that a node announces.
const maxLabels = 32

var labelRE = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._/=-]{0,127}$`)

var kindRE = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// Check checks the setting with this key, if there is more to check than its limits.
func (s *Settings) Check(key string) error {
	switch key {
	case "net.listen":
		return checkAddrs(s.Net.Listen, false)
	case "net.announce":
		return checkAddrs(s.Net.Announce, true)
	case "net.seeds":
		return checkSeeds(s.Net.Seeds)
	case "mesh.labels":
		return checkLabels(s.Mesh.Labels)
	case "dangerous":
		return checkKinds(s.Dangerous)
	}
	return nil
}

// CheckListen checks addresses to listen on; none are the default ones.
func CheckListen(addrs []string) error {
	if len(addrs) == 0 {
		return nil
	}
	return checkAddrs(addrs, false)
}

func checkAddrs(addrs []string, announced bool) error {
	if len(addrs) == 0 && !announced {
		return errors.New("the list is empty: peers cannot reach a node without a listen address")
	}
	for _, a := range addrs {
		if err := checkAddr(a, announced); err != nil {
			return fmt.Errorf("%.100q: %w, for example /ip4/0.0.0.0/udp/4001/quic-v1 or /ip4/0.0.0.0/tcp/4001", a, err)
		}
	}
	return nil
}

// checkSeeds checks the format of members' addresses.
func checkSeeds(seeds []string) error {
	for _, s := range seeds {
		addr, id, found := strings.Cut(s, "/p2p/")
		if _, err := proto.ParsePeerID(id); !found || err != nil {
			return fmt.Errorf("%.150q: it must end in /p2p/ and the id of a node, which `balefire-node status -o wide` prints", s)
		}
		if err := checkAddr(addr, true); err != nil {
			return fmt.Errorf("%.150q: %w, for example /ip4/192.0.2.1/udp/4001/quic-v1/p2p/12D3Koo…", s, err)
		}
	}
	return nil
}

func checkLabels(labels []string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("%d labels, at most %d", len(labels), maxLabels)
	}
	for _, l := range labels {
		if !labelRE.MatchString(l) {
			return fmt.Errorf("%.150q is not a label: use a word or key=value of a-z A-Z 0-9 . _ / -, at most 128 bytes", l)
		}
	}
	return nil
}

// checkAddr checks the format of a multiaddr. Whether the machine has the
// address turns out when the node listens.
func checkAddr(addr string, announced bool) error {
	parts := strings.Split(addr, "/")
	if len(parts) < 5 || parts[0] != "" {
		return errors.New("not a multiaddr")
	}
	ip, err := netip.ParseAddr(parts[2])
	switch parts[1] {
	case "ip4":
		if err != nil || !ip.Is4() {
			return errors.New("the second part is not an IPv4 address")
		}
	case "ip6":
		if err != nil || !ip.Is6() {
			return errors.New("the second part is not an IPv6 address")
		}
	case "dns", "dns4", "dns6":
		if !announced {
			return errors.New("cannot listen on a name: use an IP address")
		}
	default:
		return fmt.Errorf("%.20q: must begin with ip4 or ip6", parts[1])
	}
	port, err := strconv.ParseUint(parts[4], 10, 16)
	if err != nil || announced && port == 0 {
		return errors.New("the port must be a number up to 65535")
	}
	switch form := parts[3] + "/" + strings.Join(parts[5:], "/"); form {
	case "tcp/", "udp/quic-v1":
		return nil
	default:
		return fmt.Errorf("%.40q: must be tcp/PORT or udp/PORT/quic-v1", cmp.Or(strings.Join(parts[3:], "/"), "nothing"))
	}
}

func checkKinds(kinds []string) error {
	for _, k := range kinds {
		if !kindRE.MatchString(k) {
			return fmt.Errorf("%.40q is not a kind: use 1-128 of a-z 0-9 . _ -", k)
		}
	}
	return nil
}
