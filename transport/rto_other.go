//go:build !linux

package transport

import "net"

// limitRetransmit is for Linux alone: elsewhere nobody may say how long TCP waits before
// it says again what was lost.
func limitRetransmit(net.Conn) {}
