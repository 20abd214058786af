//go:build e2e

package e2e

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A cachedDisk is an ext4 on a disk with a volatile cache: at a cut any part of what was
// written since the last flush is lost.
//
//	store ── files ──▶ ext4 at "at" ── loop ──▶ "disk" in a FUSE of this process ──▶ now, kept
type cachedDisk struct {
	at, below string
	fuse      *os.File
	died      func(dev uint64) // called after each victim, while the disk is mounted, if not nil

	mu        sync.Mutex
	open      int        // how often the disk is open
	closed    *sync.Cond // it no longer is
	now, kept *os.File   // the content with the cache, and without
	size      int64
	cache     []extent // in which they differ
	dead      bool     // every request fails
	rng       *rand.Rand
	lost      int // sectors, so far
}

type extent struct{ off, n int64 }

const (
	sector       = 512 // bytes that a disk writes as a whole
	maxFuseWrite = 1 << 20
)

func newCachedDisk(t *testing.T) *cachedDisk {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "balefire-disk-")
	if err != nil {
		t.Fatal(err)
	}
	d := &cachedDisk{
		at: filepath.Join(dir, "at"), below: filepath.Join(dir, "below"),
		size: 1 << 30, rng: rand.New(rand.NewPCG(rand.Uint64(), 0)),
	}
	d.closed = sync.NewCond(&d.mu)
	served := make(chan struct{})
	close(served)
	t.Cleanup(func() {
		_ = command("umount", d.at)
		_ = unix.Unmount(d.below, unix.MNT_FORCE|unix.MNT_DETACH) // ends serve, also while the loop device is closing
		<-served
		for _, f := range []*os.File{d.now, d.kept, d.fuse} {
			f.Close() // nil if it was never opened
		}
		os.RemoveAll(dir)
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("this test needs root, loop devices and FUSE: %v", err)
		}
	}
	now := filepath.Join(dir, "now")
	for _, argv := range [][]string{
		{"mkdir", d.at, d.below},
		{"truncate", "-s", fmt.Sprint(d.size), now},
		{"mkfs.ext4", "-q", "-F", "-N", "2048", "-J", "size=8", "-E", "lazy_itable_init=0,lazy_journal_init=0", now},
		{"cp", "--sparse=always", now, filepath.Join(dir, "kept")},
	} {
		must(command(argv...))
	}
	d.now, err = os.OpenFile(now, os.O_RDWR, 0)
	must(err)
	d.kept, err = os.OpenFile(filepath.Join(dir, "kept"), os.O_RDWR, 0)
	must(err)
	d.fuse, err = os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	must(err)
	must(unix.Mount("balefire", d.below, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", d.fuse.Fd())))
	served = make(chan struct{})
	go func() {
		defer close(served)
		d.serve()
	}()
	must(d.mount())
	return d
}

func (d *cachedDisk) mount() error {
	return command("mount", "-o", "loop,commit=300", filepath.Join(d.below, "disk"), d.at)
}

// cut loses the cache, kills the victim before it gets another answer of the disk, and mounts
// what the disk has.
func (d *cachedDisk) cut(victim *os.Process) error {
	chance := max(0, d.rng.Float64()*2-1) // half of the time nothing is kept
	if err := d.lose(chance, victim.Kill); err != nil {
		return err
	}
	if err := unix.Waitid(unix.P_PID, victim.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		return err
	}
	if d.died != nil {
		var info unix.Stat_t
		if err := unix.Stat(d.at, &info); err != nil {
			return err
		}
		d.died(info.Dev)
	}
	if err := command("umount", d.at); err != nil {
		return err
	}
	d.mu.Lock()
	for d.open > 0 {
		d.closed.Wait()
	}
	d.dead = false
	d.mu.Unlock()
	return d.mount()
}

// lose calls kill and loses the cache, of which each sector has this chance to be kept,
// while no request is answered; all later ones fail.
func (d *cachedDisk) lose(chance float64, kill func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
	_ = kill() // it may have ended by itself
	for _, e := range d.cache {
		for off := e.off; off < e.off+e.n; off += sector {
			to, from := d.now, d.kept
			if d.rng.Float64() < chance {
				to, from = from, to
			} else {
				d.lost++
			}
			if err := copyRange(to, from, off, min(sector, e.off+e.n-off)); err != nil {
				return err
			}
		}
	}
	d.cache = nil
	return nil
}

func copyRange(to, from *os.File, off, n int64) error {
	b := make([]byte, n)
	if _, err := from.ReadAt(b, off); err != nil {
		return err
	}
	_, err := to.WriteAt(b, off)
	return err
}

// The requests of FUSE that are answered, see linux/fuse.h.
const (
	fuseLookup, fuseForget, fuseGetattr, fuseSetattr     = 1, 2, 3, 4
	fuseOpen, fuseRead, fuseWrite, fuseRelease, fuseSync = 14, 15, 16, 18, 20
	fuseInit, fuseInterrupt, fuseBatchForget             = 26, 36, 42
)

// serve answers requests until the file system is unmounted.
func (d *cachedDisk) serve() {
	b := make([]byte, maxFuseWrite+64<<10)
	for {
		n, err := unix.Read(int(d.fuse.Fd()), b)
		switch {
		case err == unix.EINTR || err == unix.ENOENT:
			continue
		case err != nil:
			return
		}
		d.request(b[:n])
	}
}

// request answers one request. A cut waits for it, or it for the cut.
func (d *cachedDisk) request(b []byte) {
	op, node, in := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[16:]), b[40:]
	if op == fuseForget || op == fuseInterrupt || op == fuseBatchForget {
		return // they have no answer
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	body, err := d.answer(op, node, in)
	out := binary.LittleEndian.AppendUint32(nil, uint32(16+len(body)))
	out = binary.LittleEndian.AppendUint32(out, uint32(-int32(err)))
	out = append(append(out, b[8:16]...), body...)
	_, _ = unix.Write(int(d.fuse.Fd()), out) // nobody waits for an interrupted one
}

func (d *cachedDisk) answer(op uint32, node uint64, in []byte) ([]byte, unix.Errno) {
	u32, u64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	switch op {
	case fuseInit:
		out := u32(u32(u32(u32(nil, 7), 31), 1<<17), 1<<22|1<<5|1) // max_pages, big_writes, async_read
		out = u32(u32(u32(out, 0), maxFuseWrite), 1)
		return append(u32(out, maxFuseWrite>>12), make([]byte, 32)...), 0
	case fuseLookup:
		if string(in) != "disk\x00" {
			return nil, unix.ENOENT
		}
		return append(u64(append(u64(nil, 2), make([]byte, 24)...), 0), d.attributes(2)...), 0
	case fuseGetattr, fuseSetattr:
		return append(make([]byte, 16), d.attributes(node)...), 0
	case fuseOpen:
		d.open++
		return u64(u64(nil, 0), 1), 0 // direct_io: each read and write comes here
	case fuseRelease:
		d.open--
		d.closed.Broadcast()
		return nil, 0
	case fuseRead, fuseWrite, fuseSync:
		if d.dead {
			return nil, unix.EIO
		}
	default:
		return nil, unix.ENOSYS
	}
	if op == fuseSync {
		return nil, d.flush()
	}
	off, n := int64(binary.LittleEndian.Uint64(in[8:])), binary.LittleEndian.Uint32(in[16:])
	if op == fuseRead {
		out := make([]byte, n)
		m, _ := d.now.ReadAt(out, off)
		return out[:m], 0
	}
	if _, err := d.now.WriteAt(in[40:40+n], off); err != nil {
		return nil, unix.EIO
	}
	d.cache = append(d.cache, extent{off, int64(n)})
	return u32(u32(nil, n), 0), 0
}

// flush keeps what is in the cache.
func (d *cachedDisk) flush() unix.Errno {
	for _, e := range d.cache {
		if err := copyRange(d.kept, d.now, e.off, e.n); err != nil {
			return unix.EIO
		}
	}
	d.cache = nil
	return 0
}

// attributes returns those of the folder, node 1, or of the disk.
func (d *cachedDisk) attributes(node uint64) []byte {
	size, mode := uint64(d.size), uint32(unix.S_IFREG|0o600)
	if node == 1 {
		size, mode = 0, unix.S_IFDIR|0o700
	}
	out := make([]byte, 88)
	binary.LittleEndian.PutUint64(out, node)
	binary.LittleEndian.PutUint64(out[8:], size)
	binary.LittleEndian.PutUint32(out[60:], mode)
	binary.LittleEndian.PutUint32(out[64:], 1)
	return out
}

// TestCacheIsLost checks the disk itself: what was flushed is there after a cut, and of the
// rest what the chance leaves.
func TestCacheIsLost(t *testing.T) {
	for chance, want := range map[float64]string{0: "flushed,-", 1: "flushed,cached"} {
		d := newCachedDisk(t)
		f, err := os.OpenFile(filepath.Join(d.below, "disk"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		at := d.size - 2*sector
		write := func(off int64, text string) {
			t.Helper()
			if _, err := f.WriteAt([]byte(text), off); err != nil {
				t.Fatal(err)
			}
		}
		write(at, "flushed,-     ")
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		write(at+8, "cached")
		if err := d.lose(chance, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		for _, disk := range []*os.File{d.now, d.kept} {
			got := make([]byte, 14)
			if _, err := disk.ReadAt(got, at); err != nil || strings.TrimRight(string(got), " ") != want {
				t.Errorf("chance %v: %s has %q, want %q, %v", chance, disk.Name(), got, want, err)
			}
		}
		if _, err := f.WriteAt([]byte("x"), at); err == nil {
			t.Error("the disk takes writes after the cut")
		}
	}
}
