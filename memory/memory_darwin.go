package memory

import "golang.org/x/sys/unix"

func available() Limit {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return Limit{}
	}
	return Limit{Bytes: int64(n)}
}
