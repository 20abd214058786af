package memory

import "golang.org/x/sys/unix"

// Available returns the limit of this process.
func Available() Limit {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return Limit{}
	}
	return Limit{Bytes: int64(n)}
}
