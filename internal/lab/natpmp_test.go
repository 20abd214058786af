//go:build e2e && linux

package lab

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab/netfilter"
)

// TestARouterMapsPorts asks a router for ports, as a host behind it does: what is
// asked for comes in, until it is given back, forgotten or over, and nothing else.
func TestARouterMapsPorts(t *testing.T) {
	l := New(t)
	public := l.Net("public", "11.0.0.0/24")
	office := public.Router("office", Attachment{Addr: "11.0.0.101"}, "192.168.1.0/24", netfilter.Cone)
	ports := office.MapPorts()
	a := office.LAN.Host("a", Attachment{Addr: "192.168.1.2"})
	b := public.Host("b", Attachment{Addr: "11.0.0.1"})
	inner := socket(t, a.namespace, "192.168.1.2:4001")
	outer := socket(t, b.namespace, "11.0.0.1:9")
	asking := socket(t, a.namespace, "192.168.1.2:5000")

	ask := func(b ...byte) []byte {
		t.Helper()
		if _, err := asking.WriteToUDPAddrPort(b, netip.MustParseAddrPort("192.168.1.1:5351")); err != nil {
			t.Fatal(err)
		}
		if err := asking.SetReadDeadline(time.Now().Add(soon)); err != nil {
			t.Fatal(err)
		}
		reply := make([]byte, 64)
		n, _, err := asking.ReadFromUDPAddrPort(reply)
		if err != nil {
			t.Fatal(err)
		}
		return reply[:n]
	}
	request := func(outside uint16, life uint32) []byte {
		b := []byte{0, pmpUDP, 0, 0, 0x0f, 0xa1} // 4001
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, outside), life)
	}
	packets := byte(0)
	enters := func(within time.Duration) bool {
		t.Helper()
		packets++ // one that comes late is not taken for the next
		if _, err := outer.WriteToUDPAddrPort([]byte{packets}, netip.MustParseAddrPort("11.0.0.101:40000")); err != nil {
			t.Fatal(err)
		}
		if err := inner.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		for got := make([]byte, 1); ; {
			if _, _, err := inner.ReadFromUDPAddrPort(got); err != nil {
				return false
			}
			if got[0] == packets {
				return true
			}
		}
	}

	if got := ask(0, pmpAddress); len(got) != 12 || net.IP(got[8:]).String() != "11.0.0.101" {
		t.Errorf("the outer address: %v", got)
	}
	if enters(never) {
		t.Error("a port that nobody asked for leads in")
	}
	if got := ask(request(40000, 60)...); len(got) != 16 || got[3] != pmpDone || binary.BigEndian.Uint16(got[10:]) != 40000 {
		t.Fatalf("a port is asked for: %v, %v", got, ports.Err())
	}
	if !enters(soon) {
		t.Error("the port does not lead in")
	}
	if got := ask(9, pmpUDP); got[3] != pmpWrong {
		t.Errorf("another version: %v", got)
	}
	ports.Forget()
	if enters(never) || len(ports.Ports()) != 0 {
		t.Error("a port leads in that the router forgot")
	}
	ask(request(40000, 60)...)
	ask(request(0, 0)...)
	office.Forget()
	if enters(never) {
		t.Error("a port leads in that was given back")
	}
	ask(request(40000, 1)...)
	for end := time.Now().Add(soon); len(ports.Ports()) > 0; {
		if time.Now().After(end) {
			t.Fatal("a mapping outlives its time")
		}
		<-time.After(mapperSweep)
	}
}
