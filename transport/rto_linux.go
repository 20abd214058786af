package transport

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxRTO is the longest pause of TCP, in milliseconds, before it says again
// what was not acknowledged. The pause doubles each time, to 120 s by default: a
// connection that survives an outage of seven seconds would stand still for another
// six (S07). Linux has the option since 6.15 (TCP_RTO_MAX_MS); without it such a path
// is back later.
const maxRTO = 1500

// limitRetransmit bounds that pause on a connection, where it is TCP.
func limitRetransmit(c net.Conn) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, maxRTO)
	})
}
