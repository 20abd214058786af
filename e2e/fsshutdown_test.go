//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/store/storetest/crash"
)

// TestFileSystemShutdown shuts the ext4 of a store down (EXT4_IOC_SHUTDOWN) while 16 writers
// commit to it, and records each fsync of the kernel along with the acknowledgements. If
// the process was stopped before, everything that was acknowledged is there. If it
// continues meanwhile, everything is there whose fsync returned before the shutdown began: an
// fsync that ext4 ends during its shutdown may return success without its data, so
// this is no power cut. The log has the trace of what was lost in this way.
// BALEFIRE_POWERCUT_ROUNDS sets the number of rounds.
func TestFileSystemShutdown(t *testing.T) {
	for _, engine := range durable {
		for _, kind := range []string{"stopped first", "while it runs"} {
			t.Run(engine+" "+kind, func(t *testing.T) {
				d := newDisk(t, shutdownOptions)
				k := newKernelTrace(t)
				c := crash.Config{
					Engine: engine, Dir: filepath.Join(d.at, "store"), Rounds: cuts(), Writers: 16, CompactEvery: 60,
					Life: 300 * time.Millisecond, Notes: k.marker(),
				}
				c.Cut = func(victim *os.Process) error {
					if kind == "stopped first" {
						if err := stopped(victim); err != nil {
							return err
						}
					}
					return d.shutDown(victim, k)
				}
				c.Lost = func(writer, found, acked int) {
					for n := found + 1; n <= acked; n++ {
						text, raced := k.explain(writer, n)
						t.Logf("transaction %d of writer %d was acknowledged and is not there:\n%s", n, writer, text)
						if !raced || kind == "stopped first" {
							t.Errorf("I1: transaction %d of writer %d is lost, and its fsync did not race with the shutdown", n, writer)
						}
					}
				}
				res, err := crash.Try(t.Context(), c)
				t.Logf("counted: %s %s: %d cuts, %d more while it opened, %d acknowledged, %d lost in the shutdown", engine, kind, res.Kills, res.Early, res.Acked, res.Lost)
				if err != nil || res.Acked == 0 {
					for _, r := range k.records {
						t.Log(strings.Join(r.lines, "\n"))
					}
					t.Fatal(err)
				}
			})
		}
	}
}

// stopped stops a process and waits until no thread of it is in a system call.
func stopped(p *os.Process) error {
	if err := p.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	return unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
}

// ext4Shutdown is EXT4_IOC_SHUTDOWN, and noLogFlush its flag that drops the journal in memory.
const ext4Shutdown, noLogFlush = 0x8004587d, 2

// shutdownOptions are those of a disk without discard: ext4 discards what the transaction
// that a shutdown aborts has freed, which the disk still refers to.
const shutdownOptions = "loop,commit=300"

// The notes around the shutdown.
const shutdownBegins, shutdownReturned = "the shutdown begins", "the shutdown has returned"

// shutDown ends the file system of the disk without writing anything, kills the victim, and
// mounts what is on the disk.
func (d *disk) shutDown(victim *os.Process, k *kernelTrace) error {
	at, err := os.Open(d.at)
	if err != nil {
		return err
	}
	var info unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &info); err != nil {
		return err
	}
	k.mark(shutdownBegins)
	err = unix.IoctlSetPointerInt(int(at.Fd()), ext4Shutdown, noLogFlush)
	k.mark(shutdownReturned)
	at.Close()
	if err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	_ = victim.Kill()
	if err := unix.Waitid(unix.P_PID, victim.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		return err
	}
	k.keep(info.Dev)
	if err := command("umount", d.at); err != nil {
		return err
	}
	// A mount namespace that was made meanwhile may have the old file system still.
	if err := command("cp", "--sparse=always", d.image(), d.copy); err != nil {
		return err
	}
	return d.replace()
}
