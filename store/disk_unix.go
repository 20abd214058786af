//go:build linux || darwin

package store

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// DiskSpace returns a function that returns how much of the disk under dir is
// free for this user and how large the disk is, in bytes. It is meant for
// [Config].
func DiskSpace(dir string) func() (free, total int64, err error) {
	return func() (free, total int64, err error) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
		}
		size := int64(st.Bsize)
		return int64(st.Bavail) * size, int64(st.Blocks) * size, nil
	}
}
