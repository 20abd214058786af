package api

import "golang.org/x/sys/unix"

// socketUser returns the user at the other end of a unix socket.
func socketUser(fd int) (uint32, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}
