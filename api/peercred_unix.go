//go:build linux || darwin

package api

import "net"

// peerUser returns the user id of the process at the other end of c, as the kernel
// reports it.
func peerUser(c *net.UnixConn) (uid uint32, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var failed error
	err = raw.Control(func(fd uintptr) { uid, failed = socketUser(int(fd)) })
	return uid, err == nil && failed == nil
}
