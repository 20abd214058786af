package store

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// DiskSpace returns a function that returns how much of the disk under dir is
// free for this user and how large the disk is, in bytes. It is meant for
// [Config].
func DiskSpace(dir string) func() (free, total int64, err error) {
	return func() (free, total int64, err error) {
		name, err := windows.UTF16PtrFromString(dir)
		if err != nil {
			return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
		}
		var avail, size, all uint64
		if err := windows.GetDiskFreeSpaceEx(name, &avail, &size, &all); err != nil {
			return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
		}
		return int64(avail), int64(size), nil
	}
}
