//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/internal/lab"
	"github.com/balefire/balefire/internal/lab/netfilter"
	"github.com/balefire/balefire/wire"
)

// TestRouterIsAskedForPorts checks that a node behind a NAT maps ports on its router with
// NAT-PMP: an outside node that it cannot dial reaches it there without a relay,
// also after the router has lost its mappings; once the node has stopped, the
// router forwards nothing anymore.
func TestRouterIsAskedForPorts(t *testing.T) {
	public := lab.New(t).Net("public", "11.0.0.0/24")
	office := public.Router("office", lab.Attachment{Addr: "11.0.0.101"}, "192.168.1.0/24", netfilter.Symmetric)
	ports := office.MapPorts()
	alone := "  mdns: off\n  dht: off\n  relay: off\n"
	outside := public.Host("b", lab.Attachment{Addr: "11.0.0.1"})
	b := newMachine(t, "b", true, place(outside, config{engine: "nutsdb", net: alone}))
	a := newMachine(t, "a", false, place(office.LAN.Host("a", lab.Attachment{Addr: "192.168.1.2"}), config{engine: "nutsdb", net: alone + "  port_map: on\n"}))
	b.start()
	a.join(b)
	a.start()

	mapped := func() string {
		n, err := a.NetCheck(context.Background())
		if err != nil || !strings.HasPrefix(n.PortMap, "/ip4/11.0.0.101/") {
			return ""
		}
		return n.PortMap
	}
	announced := func() bool {
		p, err := b.Peer(context.Background(), "a")
		return err == nil && slices.ContainsFunc(p.Addrs, func(s string) bool {
			return strings.HasPrefix(s, "/ip4/11.0.0.101/") && slices.ContainsFunc(ports.Ports(), func(port uint16) bool { return strings.Contains(s, fmt.Sprintf("/%d", port)) })
		})
	}
	reaches := func(from string) {
		t.Helper()
		a.until("it has port mappings", func() bool { return mapped() != "" })
		b.until("it knows the mapped addresses", announced)
		b.stop()
		outside.Readdress(from) // an address that a does not know
		b.start()
		p := b.meets("a", func(p wire.Peer) bool { return p.Direct && strings.Contains(p.Path, "11.0.0.101") })
		t.Logf("reached at %s", p.Path)
		if !slices.ContainsFunc(ports.Ports(), func(port uint16) bool { return strings.Contains(p.Path, fmt.Sprint(port)) }) {
			t.Errorf("reached at %s, which is not one of %v", p.Path, ports.Ports())
		}
	}
	reaches("11.0.0.2")
	if out := a.must("netcheck"); !strings.Contains(out, "port mapping  /ip4/11.0.0.101/") || !strings.Contains(out, "announced     /ip4/11.0.0.101/") {
		t.Errorf("netcheck prints\n%s", out)
	}

	ports.Forget()
	a.until("the ports are mapped again", func() bool { return len(ports.Ports()) > 0 })
	reaches("11.0.0.3")

	a.stop()
	b.until("no port is mapped", func() bool { return len(ports.Ports()) == 0 })
	if err := ports.Err(); err != nil {
		t.Error(err)
	}
}
