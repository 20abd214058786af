//go:build !linux

package transport

import "net"

// resendSoon is for Linux alone: elsewhere nobody may say how long TCP waits before
// it says again what was lost.
func resendSoon(net.Conn) {}
