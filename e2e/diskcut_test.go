//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/store/pebble"
	"github.com/balefire/balefire/store/storetest/crash"
)

// crashStores are the stores whose disks lose power.
var crashStores = map[string]crash.Opener{
	"nutsdb": func(dir string) (store.Engine, error) { return nuts.Open(dir, nuts.Config{Logger: silent}) },
	"pebble": func(dir string) (store.Engine, error) { return pebble.Open(dir, pebble.Config{Logger: silent}) },
	"ledger": openLedger,
	"synced": func(dir string) (store.Engine, error) { return openPlain(dir, (*os.File).Sync) },
	"unsynced": func(dir string) (store.Engine, error) {
		return openPlain(dir, func(*os.File) error { return nil })
	},
}

// durable are the stores of the product.
var durable = []string{"nutsdb", "pebble", "ledger"}

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// TestDiskLosesPower checks I1 and I8 on a real file system: 16 writers commit to a store
// on an ext4 of its own, whose disk freezes at a random moment; data that the
// system has not sent to it by then is lost. The process is either killed before or
// continues meanwhile, or it continues and the disk loses its own cache, too. Each time
// the store opens without intervention from the state of the disk and contains every
// transaction acknowledged before, complete. Of the disk with a cache the kernel records each
// fsync, which must have returned before what it makes durable is acknowledged.
// BALEFIRE_POWERCUT_ROUNDS sets the number of rounds.
func TestDiskLosesPower(t *testing.T) {
	for _, engine := range durable {
		for _, kind := range []string{"stopped first", "while it runs", "with its cache"} {
			t.Run(engine+" "+kind, func(t *testing.T) {
				var at, notes string
				var cut func(*os.Process) error
				if kind == "with its cache" {
					d, k := newCachedDisk(t), newKernelTrace(t)
					at, cut, notes = d.at, d.cut, k.marker()
					acks := k.countAcks(d)
					defer func() {
						t.Logf("counted: %d sectors of the cache were lost; %d acknowledgements traced, %d before their fsync; %d records too long", d.lost, acks.all, len(acks.early), acks.tooLong)
						if acks.all == 0 || len(acks.early) > 0 {
							t.Errorf("I1: %d acknowledgements traced, these before an fsync of theirs had returned: %q", acks.all, acks.early)
						}
					}()
				} else {
					d := newDisk(t, diskOptions)
					at, cut = d.at, d.cut
				}
				if kind == "stopped first" {
					running := cut
					cut = func(victim *os.Process) error {
						if err := victim.Kill(); err != nil {
							return err
						}
						return running(victim)
					}
				}
				crash.Run(t, crash.Config{
					Engine: engine, Dir: filepath.Join(at, "store"), Rounds: cuts(), Writers: 16, CompactEvery: 60,
					Life: 300 * time.Millisecond, Cut: cut, Notes: notes,
				})
			})
		}
	}
}

// cuts is the number of rounds.
func cuts() int {
	if n, err := strconv.Atoi(os.Getenv("BALEFIRE_POWERCUT_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return rounds(5, 300)
}

// TestDiskLosesWhatIsNotSynced checks the disks of TestDiskLosesPower: they keep synced data
// and lose the rest. A log whose commits are not synced survives the death of its process,
// but not the power cut, and the record of the kernel shows that they are not synced.
func TestDiskLosesWhatIsNotSynced(t *testing.T) {
	frozen, cached, k := newDisk(t, diskOptions), newCachedDisk(t), newKernelTrace(t)
	for _, tt := range []struct {
		engine, at string
		cut        func(*os.Process) error
		lost       bool
	}{
		{"unsynced", frozen.at, nil, false},
		{"synced", frozen.at, frozen.cut, false},
		{"unsynced", frozen.at, frozen.cut, true},
		{"synced", cached.at, cached.cut, false},
		{"unsynced", cached.at, cached.cut, true},
	} {
		acks := k.countAcks(cached)
		c := crash.Config{Engine: tt.engine, Dir: filepath.Join(tt.at, tt.engine), Rounds: 8, Life: 200 * time.Millisecond, Cut: tt.cut, Notes: k.marker()}
		if _, err := crash.Try(t.Context(), c); tt.lost != (err != nil && strings.Contains(err.Error(), "was the last acknowledged")) {
			t.Errorf("%s at %s, cut %v: %v", tt.engine, tt.at, tt.cut != nil, err)
		}
		if tt.at == cached.at && (acks.all == 0 || (len(acks.early) > 0) != tt.lost) {
			t.Errorf("%s: of %d acknowledgements %d before an fsync of theirs had returned", tt.engine, acks.all, len(acks.early))
		}
	}
}

// A plain engine is a log of commits as lines of JSON, in memory when it is open.
type plain struct {
	*mem.Engine
	log  *os.File
	sync func(*os.File) error
}

func openPlain(dir string, sync func(*os.File) error) (store.Engine, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	p := &plain{mem.New(), log, sync}
	for lines := json.NewDecoder(log); ; {
		var ops []store.Op
		if err := lines.Decode(&ops); err != nil { // the end of the log, torn or not
			return p, log.Truncate(lines.InputOffset())
		}
		if err := p.Engine.Commit(ops); err != nil {
			return nil, err
		}
	}
}

func (p *plain) Commit(ops []store.Op) error {
	line, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	if _, err := p.log.Write(append(line, '\n')); err != nil {
		return err
	}
	if err := p.sync(p.log); err != nil {
		return err
	}
	return p.Engine.Commit(ops)
}

// A disk is an ext4 in a file on another ext4. While the latter is frozen, the disk keeps its
// content, whatever is written to it.
//
//	store ── files ──▶ ext4 at "at" ── loop ──▶ N.img on the ext4 at "below" ── loop ──▶ memory
type disk struct {
	below, at, copy string
	options         string
	images          int
}

func newDisk(t *testing.T, options string) *disk {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "balefire-disk-")
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{below: filepath.Join(dir, "below"), at: filepath.Join(dir, "at"), copy: filepath.Join(dir, "copy.img"), options: options}
	t.Cleanup(func() {
		_ = command("umount", "-l", d.at)
		_ = command("umount", "-l", d.below)
		os.RemoveAll(dir)
	})
	for _, at := range []string{d.below, d.at} {
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lower := filepath.Join(dir, "lower.img")
	for _, argv := range [][]string{
		{"truncate", "-s", "3G", lower},
		{"mkfs.ext4", "-q", "-F", "-m", "0", lower},
		{"mount", "-o", "loop", lower, d.below},
		{"truncate", "-s", "1G", d.image()},
		{"mkfs.ext4", "-q", "-F", "-N", "2048", "-J", "size=8", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.image()},
		{"mount", "-o", options, d.image(), d.at},
	} {
		if err := command(argv...); err != nil {
			t.Fatalf("this test needs root and loop devices: %v", err)
		}
	}
	return d
}

// diskOptions make the file system write only what is synced explicitly, and disable
// features that are not needed.
const diskOptions = "loop,commit=300,discard"

func (d *disk) image() string { return filepath.Join(d.below, fmt.Sprintf("%d.img", d.images)) }

// cut stops the disk, kills the victim, and replaces the disk by its state at the cut.
func (d *disk) cut(victim *os.Process) (err error) {
	below, err := os.Open(d.below)
	if err != nil {
		return err
	}
	defer below.Close()
	if err := freeze(below, fiFreeze); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	err = command("cp", "--sparse=always", d.image(), d.copy)
	_ = victim.Kill() // it can end once writes are possible again
	if err := freeze(below, fiThaw); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	if err != nil {
		return err
	}
	if err := command("umount", "-l", d.at); err != nil {
		return err
	}
	return d.replace()
}

// replace mounts the copy as the disk.
func (d *disk) replace() error {
	old := d.image()
	d.images++
	if err := command("cp", "--sparse=always", d.copy, d.image()); err != nil {
		return err
	}
	if err := os.Remove(old); err != nil {
		return err
	}
	return command("mount", "-o", d.options, d.image(), d.at)
}

// The ioctl requests that freeze and thaw a file system.
const fiFreeze, fiThaw = 0xc0045877, 0xc0045878

func freeze(f *os.File, how uint) error {
	return unix.IoctlSetInt(int(f.Fd()), how, 0)
}

func command(argv ...string) error {
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w: %s", argv, err, out)
	}
	return nil
}
