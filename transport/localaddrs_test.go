package transport

import (
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/clock"
)

// fakeInterfaces are the addresses of a machine, as a test sets them.
type fakeInterfaces struct {
	mu    sync.Mutex
	addrs []string
}

func (f *fakeInterfaces) set(addrs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs = addrs
}

func (f *fakeInterfaces) read() ([]ma.Multiaddr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.addrs == nil {
		return nil, errors.New("no netlink socket")
	}
	return multiaddrs(f.addrs...), nil
}

func multiaddrs(addrs ...string) (out []ma.Multiaddr) {
	for _, a := range addrs {
		out = append(out, ma.StringCast(a))
	}
	return out
}

// The addresses that libp2p reports are corrected by those that the interfaces have now.
func TestLocalAddrs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fakeInterfaces
		l := newLocalAddrs(Config{Clock: clock.System()})
		l.read = f.read
		l.bound(multiaddrs("/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/192.0.2.7/tcp/4001"))
		check := func(what string, given, want []ma.Multiaddr) {
			t.Helper()
			got := ma.Unique(l.correct(given))
			slices.SortFunc(got, ma.Multiaddr.Compare)
			slices.SortFunc(want, ma.Multiaddr.Compare)
			if !slices.EqualFunc(got, want, ma.Multiaddr.Equal) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		old := multiaddrs("/ip4/10.0.0.1/udp/4001/quic-v1", "/ip4/192.0.2.7/tcp/4001", "/ip4/198.51.100.9/udp/4001/quic-v1")
		if l.refresh() || l.listening() != nil {
			t.Error("unreadable interfaces have changed")
		}
		check("unreadable interfaces", old, old)

		f.set("/ip4/10.0.0.1", "/ip4/127.0.0.1", "/ip6/fe80::1", "/ip4/192.0.2.7")
		for range 2 {
			if l.refresh() {
				t.Error("the first addresses are no change")
			}
		}
		before := multiaddrs("/ip4/10.0.0.1/udp/4001/quic-v1", "/ip4/127.0.0.1/udp/4001/quic-v1", "/ip4/192.0.2.7/udp/4001/quic-v1", "/ip4/192.0.2.7/tcp/4001")
		check("as libp2p says", before, before)

		f.set("/ip4/127.0.0.1", "/ip4/10.0.5.5", "/ip4/192.0.2.7")
		for n := range 2 {
			if l.refresh() != (n == 0) {
				t.Error("a new address is one change")
			}
		}
		relayed := multiaddrs("/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA/p2p-circuit")
		after := multiaddrs("/ip4/10.0.5.5/udp/4001/quic-v1", "/ip4/127.0.0.1/udp/4001/quic-v1", "/ip4/192.0.2.7/udp/4001/quic-v1", "/ip4/192.0.2.7/tcp/4001")
		observed := multiaddrs("/ip4/198.51.100.9/udp/4001/quic-v1")
		check("as libp2p says for a minute", slices.Concat(old, observed, relayed), slices.Concat(after, observed, relayed))
		if got := l.listening(); slices.ContainsFunc(got, old[0].Equal) || !slices.ContainsFunc(got, after[0].Equal) {
			t.Errorf("listening at %v", got)
		}

		f.set("/ip4/127.0.0.1", "/ip4/10.0.0.1", "/ip4/192.0.2.7")
		if !l.refresh() {
			t.Error("the old address again is a change")
		}
		check("the old address again", before, before)

		f.set("/ip4/127.0.0.1", "/ip4/192.0.2.7")
		l.refresh()
		time.Sleep(staleFor + time.Second) // virtual: libp2p knows by now; somebody else's router may have the address
		lost := multiaddrs("/ip4/10.0.0.1/udp/4001/quic-v1")
		check("an address seen by others", lost, slices.Concat(lost, before[1:]))
	})
}

// A node that gets another address announces it at once, to its peers and on the LAN;
// libp2p would announce the old one for up to a minute.
func TestNewAddressIsAnnounced(t *testing.T) {
	t.Parallel()
	var f fakeInterfaces
	f.set("/ip4/127.0.0.1", "/ip4/10.1.1.1")
	var starts atomic.Int32
	n := onLAN(t, 1, func(n *testNode, cfg *Config) {
		cfg.Listen = []string{"/ip4/0.0.0.0/tcp/0"}
		tune := n.tune
		n.tune = func(tr *Transport) {
			tune(tr)
			tr.local.read = f.read
			start := tr.disc.lan.start
			tr.disc.lan.start = func(name string) (io.Closer, error) {
				starts.Add(1)
				return start(name)
			}
		}
	})
	announces := func(ip string) func() bool {
		return func() bool {
			lan, err := lanHost{n.host, n.local}.Network().InterfaceListenAddresses()
			has := func(addrs []ma.Multiaddr) bool {
				return slices.ContainsFunc(addrs, func(a ma.Multiaddr) bool { return ipOf(a) == ip })
			}
			return err == nil && has(lan) && has(n.host.Addrs())
		}
	}
	eventually(t, "it announces its address", announces("10.1.1.1"))
	eventually(t, "it is on the LAN", func() bool { return starts.Load() == 2 })
	f.set("/ip4/127.0.0.1", "/ip4/10.2.2.2")
	eventually(t, "it announces its new address", announces("10.2.2.2"))
	if announces("10.1.1.1")() {
		t.Error("it still announces the old one")
	}
	eventually(t, "it tells the LAN", func() bool { return starts.Load() == 4 })
}

// SetInterfaces gives the machine of t interfaces with the addresses that read returns, as of a node that
// listens on all of them; a simulated network has none. It must be called before Run.
func (t *Transport) SetInterfaces(read func() ([]ma.Multiaddr, error)) {
	t.local.read = read
	t.local.bound(multiaddrs("/ip4/0.0.0.0/udp/4001/quic-v1"))
}

// AddressesChanged tells t that the addresses of its machine have changed, as its watch of the
// interfaces does; a simulated network has none.
func (t *Transport) AddressesChanged() { t.addressesChanged() }
