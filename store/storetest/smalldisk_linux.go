package storetest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// SmallDisk mounts a file system of size bytes until the test ends, and returns its folder.
// [MayMount] says whether it can.
func SmallDisk(t *testing.T, size int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatalf("a small disk cannot be mounted: %v", err)
	}
	t.Cleanup(func() { // at once, even if a file is still open
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// MayMount returns true if this process may mount a file system. Otherwise it runs the test
// in a process that may, because it is root in a user namespace of its own, and returns
// false: the test is done.
func MayMount(t *testing.T) bool {
	t.Helper()
	const inside = "BALEFIRE_TEST_MOUNTS"
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "")
	if err == nil {
		err = unix.Unmount(dir, unix.MNT_DETACH)
	}
	if err == nil || os.Getenv(inside) != "" {
		return true
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), inside+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if out, ran := again.CombinedOutput(); ran != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("mount: %v; in a user namespace: %v; run the test as root\n%s", err, ran, out)
	}
	return false
}
