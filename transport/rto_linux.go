package transport

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxRTO is the maximum TCP retransmission timeout, in milliseconds. The timeout doubles
// with each retransmission, to 120 s by default: a connection that survives an outage of
// seven seconds would stall for another six (S07). Linux has the option since 6.15
// (TCP_RTO_MAX_MS); without it such a path recovers later.
const maxRTO = 1500

// limitRetransmit limits that timeout on a TCP connection.
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
