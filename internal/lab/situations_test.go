//go:build e2e && linux

package lab

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/internal/lab/netfilter"
)

// TestMappingAndFiltering checks for each kind of NAT, as RFC 4787 names them, to whom a host
// behind it shows one port, and who may answer there.
func TestMappingAndFiltering(t *testing.T) {
	for _, tt := range []struct {
		name                      string
		kind                      netfilter.NAT
		keptForPort, keptForOther bool // one outer port for two ports of one address, for two addresses
		fromPort, fromOther       bool // lets in packets from another port, from another address
	}{
		{"cone", netfilter.Cone, true, true, false, false},
		{"symmetric", netfilter.Symmetric, false, false, false, false},
		{"restricted cone", netfilter.RestrictedCone, true, true, true, false},
		{"full cone", netfilter.FullCone, true, true, true, true},
		{"address mapping", netfilter.AddressMapping, true, false, false, false},
		{"accepting cone after packets of both", netfilter.AcceptingCone, false, false, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			public := New(t).Net("public", "11.0.0.0/24")
			r := public.Router("nat", Attachment{Addr: "11.0.0.101"}, "192.168.1.0/24", tt.kind)
			inside := r.LAN.Host("inside", Attachment{Addr: "192.168.1.2"}).namespace
			in, other := socket(t, inside, "192.168.1.2:4001"), socket(t, inside, "192.168.1.2:4002")
			one := public.Host("one", Attachment{Addr: "11.0.0.1"}).namespace
			first, second := socket(t, one, "11.0.0.1:4001"), socket(t, one, "11.0.0.1:4002")
			third := socket(t, public.Host("two", Attachment{Addr: "11.0.0.2"}).namespace, "11.0.0.2:4001")
			say(t, other, "11.0.0.2:4001") // both know each other's hardware address
			if !hear(t, third, soon).IsValid() {
				t.Fatal("nothing passes")
			}
			say(t, in, "11.0.0.1:4001")
			seen := hear(t, first, soon)
			let := func(from *net.UDPConn, want bool) {
				t.Helper()
				say(t, from, seen.String())
				if got := hear(t, in, map[bool]time.Duration{true: soon, false: never}[want]); got.IsValid() != want {
					t.Errorf("lets in %s: %v, want %v", from.LocalAddr(), got.IsValid(), want)
				}
			}
			let(first, true)
			let(second, tt.fromPort)
			let(third, tt.fromOther)
			kept := func(by *net.UDPConn, want bool) {
				t.Helper()
				say(t, in, by.LocalAddr().String())
				if got := hear(t, by, soon); (got == seen) != want || got.Addr() != seen.Addr() {
					t.Errorf("%s sees %s, and the first one %s", by.LocalAddr(), got, seen)
				}
			}
			kept(second, tt.keptForPort)
			kept(third, tt.keptForOther)
			r.Forget()
			let(third, false)
		})
	}
}

// TestFirewallOfIPv6 checks that hosts behind it are seen at their own addresses, and that
// only answers come in.
func TestFirewallOfIPv6(t *testing.T) {
	public := New(t).Net("public", "2a00:1::/64")
	before := socket(t, public.Host("before", Attachment{Addr: "2a00:1::1"}).namespace, "[2a00:1::1]:4001")
	r := public.Router("firewall", Attachment{Addr: "2a00:1::101"}, "2a00:1:0:1::/64", netfilter.Firewall)
	after := socket(t, public.Host("after", Attachment{Addr: "2a00:1::2"}).namespace, "[2a00:1::2]:4001")
	in := socket(t, r.LAN.Host("in", Attachment{Addr: "2a00:1:0:1::2"}).namespace, "[2a00:1:0:1::2]:4001")
	for _, out := range []*net.UDPConn{before, after} {
		if reached(t, out, in, never) {
			t.Error("the firewall lets in what was not asked for")
		}
		say(t, in, out.LocalAddr().String())
		if from := hear(t, out, soon); from.String() != in.LocalAddr().String() {
			t.Errorf("%s is seen as %s", in.LocalAddr(), from)
		}
		if !reached(t, out, in, soon) {
			t.Error("the answer does not come in")
		}
	}
}

func TestHostInTwoNetworks(t *testing.T) {
	l := New(t)
	four, six := l.Net("four", "11.0.0.0/24"), l.Net("six", "2a00:1::/64")
	h := four.Host("both", Attachment{Addr: "11.0.0.1"})
	h.Connect(six, Attachment{Addr: "2a00:1::1"})
	for _, pair := range [][2]*net.UDPConn{
		{socket(t, four.Host("a", Attachment{Addr: "11.0.0.2"}).namespace, "11.0.0.2:4001"), socket(t, h.namespace, "11.0.0.1:4001")},
		{socket(t, six.Host("b", Attachment{Addr: "2a00:1::2"}).namespace, "[2a00:1::2]:4001"), socket(t, h.namespace, "[2a00:1::1]:4001")},
	} {
		if !reached(t, pair[0], pair[1], soon) || !reached(t, pair[1], pair[0], soon) {
			t.Errorf("nothing passes between %s and %s", pair[0].LocalAddr(), pair[1].LocalAddr())
		}
	}
}

// TestRestrictedRouter checks what a router passes, and how it refuses the rest.
func TestRestrictedRouter(t *testing.T) {
	public := New(t).Net("public", "11.0.0.0/24")
	server := public.Host("server", Attachment{Addr: "11.0.0.1"}).namespace
	out := socket(t, server, "11.0.0.1:443")
	for _, port := range []string{"443", "80"} {
		var listener net.Listener
		if err := server.Do(func() (err error) { listener, err = net.Listen("tcp4", "11.0.0.1:"+port); return err }); err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
	}
	r := public.Router("nat", Attachment{Addr: "11.0.0.101"}, "192.168.1.0/24", netfilter.Cone)
	inside := r.LAN.Host("inside", Attachment{Addr: "192.168.1.2"}).namespace
	in := socket(t, inside, "192.168.1.2:4001")
	dial := func(port string, timeout time.Duration) error {
		return inside.Do(func() error {
			c, err := net.DialTimeout("tcp4", "11.0.0.1:"+port, timeout)
			if err == nil {
				return c.Close()
			}
			if os.IsTimeout(err) {
				return syscall.ETIMEDOUT
			}
			return err
		})
	}
	for _, tt := range []struct {
		name   string
		filter netfilter.Filter
		udp    bool  // passes
		port80 error // what who dials TCP to it gets
	}{
		{"nothing", netfilter.Filter{}, true, nil},
		{"UDP dropped", netfilter.Filter{NoUDP: true}, false, nil},
		{"all but 443 dropped", netfilter.Filter{OnlyTCP: 443}, false, syscall.ETIMEDOUT},
		{"all but 443 rejected", netfilter.Filter{OnlyTCP: 443, Reject: true}, false, syscall.ECONNREFUSED},
		{"nothing again", netfilter.Filter{}, true, nil},
	} {
		r.Restrict(tt.filter)
		if got := reached(t, in, out, map[bool]time.Duration{true: soon, false: never}[tt.udp]); got != tt.udp {
			t.Errorf("%s: UDP passes: %v", tt.name, got)
		}
		if err := dial("443", soon); err != nil {
			t.Errorf("%s: port 443: %v", tt.name, err)
		}
		timeout := soon
		if tt.port80 == syscall.ETIMEDOUT {
			timeout = never
		}
		if err := dial("80", timeout); !errors.Is(err, tt.port80) {
			t.Errorf("%s: port 80: %v, want %v", tt.name, err, tt.port80)
		}
		if tt.filter.Reject {
			if err := refusal(inside); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: UDP: %v", tt.name, err)
			}
		}
	}
}

// refusal returns what the sender of a UDP packet to the server learns.
func refusal(s namespace) error {
	return s.Do(func() error {
		c, err := net.Dial("udp4", "11.0.0.1:53")
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(soon)); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	})
}

// TestSmallMTUInTheMiddle checks that small packets pass in both directions, that senders of
// larger ones are told, and that they are not told by silent routers.
func TestSmallMTUInTheMiddle(t *testing.T) {
	for _, silent := range []bool{false, true} {
		t.Run(map[bool]string{false: "ICMP comes", true: "ICMP is lost"}[silent], func(t *testing.T) {
			public := New(t).Net("public", "11.0.0.0/24")
			provider := public.Router("provider", Attachment{Addr: "11.0.0.101"}, "100.64.0.0/16", netfilter.Cone)
			home := provider.LAN.Router("home", Attachment{Addr: "100.64.0.9"}, "192.168.1.0/24", netfilter.Cone)
			in := socket(t, home.LAN.Host("in", Attachment{Addr: "192.168.1.2"}).namespace, "192.168.1.2:4001")
			out := socket(t, public.Host("out", Attachment{Addr: "11.0.0.1"}).namespace, "11.0.0.1:4001")
			provider.LAN.MTU(1280)
			if silent {
				provider.Silence()
				home.Silence()
			}
			say(t, in, "11.0.0.1:4001")
			seen := net.UDPAddrFromAddrPort(hear(t, out, soon))
			for _, way := range []struct {
				from, to *net.UDPConn
				at       net.Addr
			}{{in, out, out.LocalAddr()}, {out, in, seen}} {
				whole(t, way.from)
				for size, passes := range map[int]bool{1200: true, 1400: false} {
					if _, err := way.from.WriteTo(make([]byte, size), way.at); err != nil {
						t.Fatal(err)
					}
					if got := hear(t, way.to, map[bool]time.Duration{true: soon, false: never}[passes]); got.IsValid() != passes {
						t.Errorf("%d bytes from %s pass: %v", size, way.from.LocalAddr(), got.IsValid())
					}
				}
				if told := told(way.from, way.at); told == silent {
					t.Errorf("%s is told: %v", way.from.LocalAddr(), told)
				}
			}
		})
	}
}

// whole forbids to split packets of the socket.
func whole(t *testing.T, c *net.UDPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}); err != nil || set != nil {
		t.Fatal(err, set)
	}
}

// told reports whether the kernel of the sender knows that 1400 bytes are too many.
func told(c *net.UDPConn, to net.Addr) bool {
	for over := time.Now().Add(never); time.Now().Before(over); {
		if _, err := c.WriteTo(make([]byte, 1400), to); errors.Is(err, unix.EMSGSIZE) {
			return true
		}
	}
	return false
}

func TestIsolatedClients(t *testing.T) {
	public := New(t).Net("public", "11.0.0.0/24")
	out := socket(t, public.Host("out", Attachment{Addr: "11.0.0.1"}).namespace, "11.0.0.1:4001")
	cafe := public.Router("cafe", Attachment{Addr: "11.0.0.101"}, "192.168.1.0/24", netfilter.Cone)
	a := socket(t, cafe.LAN.Host("a", Attachment{Addr: "192.168.1.2"}).namespace, "192.168.1.2:4001")
	b := socket(t, cafe.LAN.Host("b", Attachment{Addr: "192.168.1.3"}).namespace, "192.168.1.3:4001")
	if !reached(t, a, b, soon) || !reached(t, b, a, soon) {
		t.Fatal("nothing passes")
	}
	cafe.LAN.Isolate()
	late := socket(t, cafe.LAN.Host("late", Attachment{Addr: "192.168.1.4"}).namespace, "192.168.1.4:4001")
	for _, c := range []*net.UDPConn{b, late} {
		if reached(t, a, c, never) || reached(t, c, a, never) {
			t.Errorf("%s and %s reach each other", a.LocalAddr(), c.LocalAddr())
		}
		if !reached(t, c, out, soon) {
			t.Errorf("%s does not reach the gateway", c.LocalAddr())
		}
	}
}
