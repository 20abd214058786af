package transport

import (
	"encoding/binary"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/clock"
)

// A testRouter answers NAT-PMP on a loopback address.
type testRouter struct {
	mu    sync.Mutex
	began time.Time
	given map[byte]uint16 // internal port by request code
	asked int             // port mapping requests
	last  string          // the last packet and its sender: a repetition is a retransmission
	mute  bool
}

func newTestRouter(t *testing.T, addr net.IP) *testRouter {
	t.Helper()
	c, err := net.ListenPacket("udp4", addr.String()+":5351")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r := &testRouter{began: time.Now().Add(-time.Hour), given: map[byte]uint16{}}
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if out := r.answer(buf[:n], from); out != nil {
				c.WriteTo(out, from)
			}
		}
	}()
	return r
}

// ownLoopback returns a loopback address that other test processes on this machine do not
// use: NAT-PMP has a fixed port.
func ownLoopback(n byte) net.IP { return net.IPv4(127, n, byte(os.Getpid()>>8), byte(os.Getpid())) }

func (r *testRouter) answer(b []byte, from net.Addr) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mute {
		return nil
	}
	out := binary.BigEndian.AppendUint32([]byte{0, b[1] + 128, 0, 0}, uint32(time.Since(r.began)/time.Second))
	if b[1] == 0 {
		r.last = ""
		return append(out, 192, 0, 2, 1)
	}
	inner, life := binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint32(b[8:])
	if packet := from.String() + string(b); packet != r.last {
		r.last = packet
		r.asked++
	}
	if delete(r.given, b[1]); life > 0 {
		r.given[b[1]] = inner
	}
	out = binary.BigEndian.AppendUint16(out, inner)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(out, 40000+inner), life)
}

func (r *testRouter) state() (given, asked int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.given), r.asked
}

// TestNATPMPMapsPorts checks that a router maps the ports that this node listens on, that
// mappings are requested again only after the router restarted, and that they are
// released.
func TestNATPMPMapsPorts(t *testing.T) {
	router := ownLoopback(83)
	r := newTestRouter(t, router)
	listen := func() []ma.Multiaddr {
		return []ma.Multiaddr{
			ma.StringCast("/ip4/0.0.0.0/udp/4001/quic-v1"), ma.StringCast("/ip4/0.0.0.0/tcp/4001"),
			ma.StringCast("/ip6/::/tcp/4001"), ma.StringCast("/ip4/127.0.0.1/tcp/4002"),
		}
	}
	p := newPMP(listen, func() (net.IP, error) { return router, nil }, 10*time.Millisecond, clock.Runtime())
	eventually(t, "the ports are mapped", func() bool { given, _ := r.state(); return given == 2 && p.HasDiscoveredNAT() })
	for _, tt := range []struct{ in, out string }{
		{"/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/192.0.2.1/udp/44001/quic-v1"},
		{"/ip4/0.0.0.0/tcp/4001", "/ip4/192.0.2.1/tcp/44001"},
		{"/ip6/::/tcp/4001", ""},
		{"/ip4/127.0.0.1/tcp/4002", ""},
	} {
		got := ""
		eventually(t, "it is mapped as expected", func() bool {
			got = ""
			if a := p.GetMapping(ma.StringCast(tt.in)); a != nil {
				got = a.String()
			}
			return got == tt.out
		})
	}
	_, before := r.state()
	r.mu.Lock()
	clear(r.given)
	r.began = time.Now()
	r.mu.Unlock()
	eventually(t, "the restarted router is asked again", func() bool { given, _ := r.state(); return given == 2 })
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if given, asked := r.state(); given != 0 || asked != before+4 {
		t.Errorf("%d ports were not released, after %d requests", given, asked-before)
	}
}

// TestNATPMPWithoutRouter checks that an unresponsive router is not used, and that
// closing does not wait for it.
func TestNATPMPWithoutRouter(t *testing.T) {
	t.Parallel()
	router := ownLoopback(84)
	r := newTestRouter(t, router)
	r.mu.Lock()
	r.mute = true
	r.mu.Unlock()
	p := newPMP(func() []ma.Multiaddr { return nil }, func() (net.IP, error) { return router, nil }, time.Millisecond, clock.Runtime())
	<-p.done
	if p.HasDiscoveredNAT() || p.GetMapping(ma.StringCast("/ip4/0.0.0.0/tcp/4001")) != nil {
		t.Error("an unresponsive router was accepted")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
