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

	"golang.org/x/sys/unix"
)

// A kernelTrace is the record of each fsync and shutdown of an ext4, and of notes, in the
// order in which they happened.
type kernelTrace struct {
	dir     string
	records []*kernelRecord // of the last two victims that had begun to commit
}

type kernelRecord struct {
	lines []string
	whole bool // nothing was overwritten
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

func (k *kernelTrace) trace() string { return filepath.Join(k.dir, "trace") }

// begin drops what is in the trace.
func (k *kernelTrace) begin() { _ = os.WriteFile(k.trace(), nil, 0) }

// keep ends the record of a victim, whose disk is the device dev, and returns it: nil if the
// victim had not begun to commit.
func (k *kernelTrace) keep(dev uint64) *kernelRecord {
	text, err := os.ReadFile(k.trace())
	k.begin()
	if !bytes.Contains(text, []byte(noted+"begin ")) && err == nil {
		return nil
	}
	r := &kernelRecord{whole: nothingOverwritten(string(text))}
	of := fmt.Sprintf("dev %d,%d ", unix.Major(dev), unix.Minor(dev))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, noted) || strings.Contains(line, of) {
			r.lines = append(r.lines, strings.TrimSpace(line))
		}
	}
	k.records = append(k.records[max(0, len(k.records)-1):], r)
	return r
}

// acknowledgements are those in the records of victims.
type acknowledgements struct {
	all     int
	early   []string // no fsync that began after the transaction had returned success by then
	tooLong int      // records of which a part was overwritten, which are not counted
}

// countAcks counts the acknowledgements of the victims of a disk from now on. What is in the
// trace is of victims of other disks.
func (k *kernelTrace) countAcks(d *cachedDisk) *acknowledgements {
	k.begin()
	a := new(acknowledgements)
	d.died = func(dev uint64) {
		if r := k.keep(dev); r != nil {
			a.add(r)
		}
	}
	return a
}

func (a *acknowledgements) add(r *kernelRecord) {
	if !r.whole {
		a.tooLong++
		return
	}
	begun, entered := map[string]int{}, map[string]int{} // of a transaction and a thread, the line
	newest := -1                                         // the last begin of an fsync that returned success
	for i, line := range r.lines {
		_, note, isNote := strings.Cut(line, noted)
		thread, _, _ := strings.Cut(line, " [")
		switch verb, what, _ := strings.Cut(note, " "); {
		case verb == "begin":
			begun[what] = i
		case verb == "ack":
			a.all++
			if begin, ok := begun[what]; !ok || newest < begin {
				a.early = append(a.early, what)
			}
		case isNote:
		case strings.Contains(line, ": ext4_sync_file_enter: "):
			entered[thread] = i
		case strings.Contains(line, ": ext4_sync_file_exit: ") && strings.HasSuffix(line, " ret 0"):
			newest = max(newest, entered[thread])
		}
	}
}

// noted precedes the text of a note.
const noted = ": tracing_mark_write: "

// nothingOverwritten reads "entries-in-buffer/entries-written: 310/310" in the head of a trace.
func nothingOverwritten(trace string) bool {
	_, after, _ := strings.Cut(trace, "entries-in-buffer/entries-written: ")
	counts, _, _ := strings.Cut(after, " ")
	kept, written, ok := strings.Cut(counts, "/")
	return ok && kept == written
}

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
