package nuts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/storetest"
)

// I13, S47: on a full disk a commit fails and nothing that was acknowledged is
// lost; the store opens while the disk is still full, and works again when there
// is room.
func TestDiskFull(t *testing.T) {
	if !storetest.MayMount(t) {
		return
	}
	for _, size := range []int{700 << 10, 1 << 20, 1<<20 + 40<<10} {
		for _, val := range []int{300, 5000, 60_000} {
			t.Run(fmt.Sprintf("%d KiB, values of %d", size>>10, val), func(t *testing.T) { fillDisk(t, size, val) })
		}
	}
}

func fillDisk(t *testing.T, size, val int) {
	disk := storetest.SmallDisk(t, size)
	dir := filepath.Join(disk, "store")
	ballast := filepath.Join(disk, "ballast")
	write(t, ballast, make([]byte, 300<<10))
	d := open(t, dir)
	defer func() { d.Close() }()
	want := make(map[string]string)
	n := 0
	fill := func() (err error) {
		for ; err == nil; n++ {
			a, b := fmt.Sprint("a", n), fmt.Sprint("b", n)
			v := strings.Repeat(fmt.Sprint(n%10), val)
			if err = d.Commit([]store.Op{put(store.Inbox, a, v), put(store.Done, b, v)}); err == nil {
				want["Inbox/"+a], want["Done/"+b] = v, v
			}
		}
		return err
	}
	if err := fill(); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("err = %v, want ENOSPC", err)
	}
	same(t, dump(t, d), want)
	if err := d.Compact(); err == nil {
		t.Error("a store that failed was compacted")
	}
	d.Close()
	d = open(t, dir) // the disk is still full
	same(t, dump(t, d), want)
	d.Close()
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d = open(t, dir)
		same(t, dump(t, d), want)
		commit(t, d, put(store.Meta, "goes", "on"))
		want["Meta/goes"] = "on"
		d.Close()
	}
	d = open(t, dir)
	if err := fill(); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("err = %v, want ENOSPC", err)
	}
	d.Close()
	d = open(t, dir)
	same(t, dump(t, d), want)
}

// A compaction for which there is no room leaves the store as it was, and the disk: it
// is not begun.
func TestNoRoomForCompaction(t *testing.T) {
	if !storetest.MayMount(t) {
		return
	}
	disk := storetest.SmallDisk(t, 1<<20)
	d := open(t, filepath.Join(disk, "store"))
	begun := 0
	d.cfg.at = func(string) { begun++ }
	want := make(map[string]string)
	for i := range 65 {
		key, val := fmt.Sprint(i), strings.Repeat("x", 10_000)
		commit(t, d, put(store.Inbox, key, val))
		want["Inbox/"+key] = val
	}
	if err := d.Compact(); !errors.Is(err, unix.ENOSPC) || begun > 0 {
		t.Fatalf("err = %v after %d steps, want ENOSPC and none", err, begun)
	}
	same(t, dump(t, d), want)
	for i := range 40 {
		commit(t, d, del(store.Inbox, fmt.Sprint(i)))
		delete(want, "Inbox/"+fmt.Sprint(i))
	}
	if err := d.Compact(); err != nil {
		t.Fatalf("with fewer records there is room: %v", err)
	}
	same(t, dump(t, d), want)
}
