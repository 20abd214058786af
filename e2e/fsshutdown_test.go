//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/store/storetest/crash"
)

// TestFileSystemShutdown shuts the ext4 of a store down (EXT4_IOC_SHUTDOWN) while 16 writers
// commit to it, and records each fsync of the kernel beside the acknowledgements. If
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

// A kernelTrace is the record of each fsync and shutdown of an ext4, and of notes, in the
// order in which they happened.
type kernelTrace struct {
	dir     string
	records []*kernelRecord // of the last two victims that had begun to commit
}

type kernelRecord struct {
	lines []string
	shown bool
}

func newKernelTrace(t *testing.T) *kernelTrace {
	t.Helper()
	const root = "/sys/kernel/tracing"
	if _, err := os.Stat(root + "/instances"); err != nil {
		if err := command("mount", "-t", "tracefs", "tracefs", root); err != nil {
			t.Fatalf("this test needs the tracing of the kernel: %v", err)
		}
	}
	k := &kernelTrace{dir: filepath.Join(root, "instances", fmt.Sprintf("balefire-%d", os.Getpid()))}
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		t.Fatalf("this test needs the tracing of the kernel: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(k.dir); err != nil {
			t.Error(err)
		}
	})
	for _, setting := range [][2]string{
		{"trace_clock", "mono"},
		{"buffer_size_kb", "512"},
		{"events/ext4/ext4_shutdown/enable", "1"},
		{"events/ext4/ext4_sync_file_enter/enable", "1"},
		{"events/ext4/ext4_sync_file_exit/enable", "1"},
		{"events/jbd2/jbd2_start_commit/enable", "1"},
		{"events/jbd2/jbd2_end_commit/enable", "1"},
	} {
		if err := os.WriteFile(filepath.Join(k.dir, setting[0]), []byte(setting[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// marker is the file whose writes are notes.
func (k *kernelTrace) marker() string { return filepath.Join(k.dir, "trace_marker") }

func (k *kernelTrace) mark(note string) { _ = os.WriteFile(k.marker(), []byte(note), 0) }

// keep ends the record of a victim, whose disk is the device dev.
func (k *kernelTrace) keep(dev uint64) {
	file := filepath.Join(k.dir, "trace")
	text, err := os.ReadFile(file)
	_ = os.WriteFile(file, nil, 0) // begins a new one
	if !bytes.Contains(text, []byte(noted+"begin ")) && err == nil {
		return
	}
	r := new(kernelRecord)
	of := fmt.Sprintf("dev %d,%d ", unix.Major(dev), unix.Minor(dev))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, noted) || strings.Contains(line, of) {
			r.lines = append(r.lines, strings.TrimSpace(line))
		}
	}
	k.records = append(k.records[max(0, len(k.records)-1):], r)
}

// noted precedes the text of a note.
const noted = ": tracing_mark_write: "

// explain returns the record from the commit of a transaction until its acknowledgement
// without the notes of others, once for each cut, and whether an fsync in between
// returned success after the shutdown had begun. The victim that finds the loss may
// have committed the transaction again: the older record counts.
func (k *kernelTrace) explain(writer, n int) (text string, raced bool) {
	for _, r := range k.records {
		index := func(words string) int {
			return slices.IndexFunc(r.lines, func(line string) bool { return strings.HasSuffix(line, noted+words) })
		}
		begin, ack := index(fmt.Sprintf("begin %d %d", writer, n)), index(fmt.Sprintf("ack %d %d", writer, n))
		asked, returned := index(shutdownBegins), index(shutdownReturned)
		down := slices.IndexFunc(r.lines, func(line string) bool { return strings.Contains(line, ": ext4_shutdown: ") })
		if begin < 0 || ack < begin || down < asked || returned < down {
			continue
		}
		for i, line := range r.lines[:max(ack, returned)+1] {
			between := begin <= i && i <= ack
			raced = raced || between && i > down && strings.Contains(line, ": ext4_sync_file_exit: ") && strings.HasSuffix(line, " ret 0")
			if slices.Contains([]int{begin, ack, asked, returned}, i) || !r.shown && i >= min(begin, asked) && !strings.Contains(line, noted) {
				text += line + "\n"
			}
		}
		r.shown = true
		return text, raced
	}
	return "there is no record of it", false
}
