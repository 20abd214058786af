//go:build !linux

package transport

import "net"

// limitRetransmit does nothing: only Linux lets a program limit TCP's retransmission
// timeout.
func limitRetransmit(net.Conn) {}
