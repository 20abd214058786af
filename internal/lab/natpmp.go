//go:build linux

package lab

import (
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/internal/lab/netfilter"
)

// A PortMapper serves NAT-PMP (RFC 6886) to the hosts behind a router and forwards the
// mapped ports. A mapping ends with its lifetime.
type PortMapper struct {
	router *Router
	conn   net.PacketConn
	began  time.Time
	done   chan struct{}

	mu       sync.Mutex
	mappings map[request]mapping
	err      error // of the kernel, for the last change
}

// A request is the port that a host asks for.
type request struct {
	tcp  bool
	host netip.AddrPort
}

type mapping struct {
	port uint16 // outside
	ends time.Time
}

// Constants of NAT-PMP.
const (
	pmpPort     = 5351
	pmpAddress  = 0 // asks for the outer address
	pmpUDP      = 1
	pmpTCP      = 2
	pmpAnswer   = 128
	pmpVersion  = 0
	pmpDone     = 0
	pmpWrong    = 1 // version
	pmpFailure  = 3
	pmpNoFree   = 4
	pmpUnknown  = 5 // operation
	mapperSweep = 100 * time.Millisecond
)

// MapPorts makes the router serve NAT-PMP until the test ends.
func (r *Router) MapPorts() *PortMapper {
	r.lab.t.Helper()
	m := &PortMapper{router: r, began: time.Now(), done: make(chan struct{}), mappings: make(map[request]mapping)}
	r.lab.check(r.Do(func() (err error) {
		m.conn, err = net.ListenPacket("udp4", netip.AddrPortFrom(r.LAN.gateway, pmpPort).String())
		return err
	}))
	r.lab.t.Cleanup(func() {
		m.conn.Close()
		<-m.done
	})
	go m.serve()
	return m
}

// Ports returns the mapped outer ports, in order.
func (m *PortMapper) Ports() []uint16 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []uint16
	for _, x := range m.mappings {
		all = append(all, x.port)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Err returns the error of the last change of the forwarding rules.
func (m *PortMapper) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Forget drops all mappings and connections, as after a restart of the router.
func (m *PortMapper) Forget() {
	m.router.lab.t.Helper()
	m.mu.Lock()
	clear(m.mappings)
	m.began = time.Now()
	m.apply()
	m.mu.Unlock()
	m.router.Forget()
}

func (m *PortMapper) serve() {
	defer close(m.done)
	buf := make([]byte, 64)
	for {
		if err := m.conn.SetReadDeadline(time.Now().Add(mapperSweep)); err != nil {
			return
		}
		n, from, err := m.conn.ReadFrom(buf)
		m.sweep()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return
		}
		who, err := netip.ParseAddrPort(from.String())
		if reply := m.answer(buf[:n], who.Addr()); err == nil && reply != nil {
			m.conn.WriteTo(reply, from)
		}
	}
}

// sweep removes expired mappings.
func (m *PortMapper) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.mappings)
	maps.DeleteFunc(m.mappings, func(_ request, x mapping) bool { return time.Now().After(x.ends) })
	if len(m.mappings) != before {
		m.apply()
	}
}

// answer handles a request and returns the response; nil: none.
func (m *PortMapper) answer(b []byte, host netip.Addr) []byte {
	if len(b) < 2 || b[1] >= pmpAnswer {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	head := func(code uint16) []byte {
		out := binary.BigEndian.AppendUint16([]byte{pmpVersion, b[1] + pmpAnswer}, code)
		return binary.BigEndian.AppendUint32(out, uint32(time.Since(m.began)/time.Second))
	}
	switch {
	case b[0] != pmpVersion:
		return head(pmpWrong)
	case b[1] == pmpAddress:
		outer := m.router.WAN.addr.As4()
		return append(head(pmpDone), outer[:]...)
	case b[1] != pmpUDP && b[1] != pmpTCP:
		return head(pmpUnknown)
	case len(b) < 12:
		return nil
	}
	inner, wanted, life := binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint32(b[8:])
	code, port := m.change(request{b[1] == pmpTCP, netip.AddrPortFrom(host, inner)}, wanted, time.Duration(life)*time.Second)
	out := binary.BigEndian.AppendUint16(head(code), inner)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(out, port), life)
}

// change maps a port for r, or unmaps it if life is 0, and returns the port. The caller
// holds mu.
func (m *PortMapper) change(r request, wanted uint16, life time.Duration) (code, port uint16) {
	if life == 0 {
		delete(m.mappings, r)
		return m.apply(), 0
	}
	if old, ok := m.mappings[r]; ok {
		wanted = old.port
	}
	for other, x := range m.mappings {
		if other != r && other.tcp == r.tcp && x.port == wanted {
			return pmpNoFree, 0
		}
	}
	m.mappings[r] = mapping{wanted, time.Now().Add(life)}
	return m.apply(), wanted
}

// apply writes the mappings to the router. The caller holds mu.
func (m *PortMapper) apply() (code uint16) {
	var all []netfilter.Forwarding
	for r, x := range m.mappings {
		all = append(all, netfilter.Forwarding{TCP: r.tcp, Port: x.port, To: r.host})
	}
	m.err = m.router.Do(func() error { return netfilter.Expose("wan", all) })
	if m.err != nil {
		return pmpFailure
	}
	return pmpDone
}
