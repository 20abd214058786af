package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/proto"
)

func TestPartOfAStackIsThatOfItsInnermostOwner(t *testing.T) {
	tests := []struct {
		name  string
		stack []string // the innermost first
		want  string
	}{
		{"sealing", []string{"crypto/aes.encrypt", modulePath + "identity.(*Sealer).seal", modulePath + "node.(*Node).seal", "main.(*run).work"}, partSeal},
		{"a signature of the rest of identity", []string{"crypto/ed25519.Sign", modulePath + "identity.signRoot", modulePath + "outbox.(*Outbox).commitGroup"}, partSign},
		{"an allocation counts as one wherever it is", []string{"runtime.memclrNoHeapPointers", "runtime.mallocgc", modulePath + "store.(*Batch).reserve"}, partMemory},
		{"backlog is not store", []string{"runtime.mapassign", modulePath + "store/backlog.(*Step).apply", modulePath + "store.(*committer).flush"}, partBacklog},
		{"an engine is", []string{"syscall.Syscall", "os.(*File).Sync", "github.com/nutsdb/nutsdb.(*Tx).Commit", modulePath + "store/nuts.(*DB).Commit"}, partStore},
		{"a frame is the wire's", []string{"google.golang.org/protobuf/proto.Marshal", modulePath + "transport.(*Link).queue"}, partCode},
		{"nobody's", []string{"runtime.findRunnable", "runtime.mcall"}, partRest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := partOf(tt.stack); got != tt.want {
				t.Errorf("partOf(%q) = %q, want %q", tt.stack, got, tt.want)
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	d := []time.Duration{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, .5: 3, .99: 5, 1: 5} {
		if got := quantile(d, q); got != want {
			t.Errorf("quantile %v = %v, want %v", q, got, want)
		}
	}
	if got := quantile(nil, .5); got != 0 {
		t.Errorf("of no durations: %v", got)
	}
}

// A task may reach its state before the submitter knows its id.
func TestWatchMissesNoTask(t *testing.T) {
	const good = proto.Accepted
	w, early, late := newWatch(), proto.TaskID{1}, proto.TaskID{2}
	w.changed(early, good) // no waiter: not kept
	w.expect(good)
	w.changed(early, proto.Pending)
	w.changed(early, good)
	c := make(chan proto.TaskState, 2)
	w.wait(early, c)
	w.wait(late, c)
	w.changed(late, proto.Failed)
	if a, b := <-c, <-c; a != good || b != proto.Failed {
		t.Errorf("got %v and %v", a, b)
	}
	if len(w.early)+len(w.waits) != 0 {
		t.Errorf("%d early and %d waits are left", len(w.early), len(w.waits))
	}
}

func TestPage(t *testing.T) {
	tab := &table{title: "T", intro: "How.", head: []string{"a", "b"}, bounds: "The disk."}
	tab.row(1, verdict(false))
	var b strings.Builder
	if err := (&page{head: "# P\n", tables: []*table{tab}}).write(&b); err != nil {
		t.Fatal(err)
	}
	want := "# P\n\n## T\n\nHow.\n\n| a | b |\n| --- | --- |\n| 1 | **missed** |\n\nLimited by: The disk.\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// TestMissedTargetsAreNamed checks that a run that misses a target reports its name.
func TestMissedTargetsAreNamed(t *testing.T) {
	good, bad := &table{title: "Good"}, &table{title: "Bad"}
	good.row("nutsdb", 5, verdict(true))
	bad.row("nutsdb", 7, "≥ 6", verdict(true), 1, "≥ 2", verdict(false), "p50")
	p := &page{tables: []*table{good, bad}}
	if got := p.missed(); len(got) != 1 || got[0] != "Bad: nutsdb, 7, ≥ 6, 1, ≥ 2" {
		t.Errorf("missed: %q", got)
	}
}

// TestFiguresAreJudgedByTheirRatioToNATS checks that each disk speed has its own figures, and
// that only Pebble on a slower disk may have a tenth less than is wanted.
func TestFiguresAreJudgedByTheirRatioToNATS(t *testing.T) {
	p := &plan{figures: []figure{
		{"accepted", datadir.EngineNuts, 0, "", 1199, 12},
		{"whole", datadir.EnginePebble, 0, "4", 399, 4},
		{"accepted", datadir.EngineNuts, extra, "", 499, 50},
		{"accepted", datadir.EnginePebble, extra, "", 450, 50},
		{"whole", datadir.EnginePebble, extra, "256", 44, 5},
	}}
	tab := &table{title: "NATS"}
	p.compared(tab, 0, result{report: report{Tasks: 100, Elapsed: time.Second}})
	p.compared(tab, extra, result{report: report{Tasks: 10, Elapsed: time.Second}})
	want := []string{
		"NATS: as it is, accepted, nutsdb, 1199, 100, 11.99, ≥ 12",
		"NATS: as it is, whole, pebble, 4, 399, 100, 3.99, ≥ 4",
		"NATS: +2ms, accepted, nutsdb, 499, 10, 49.90, ≥ 50",
		"NATS: +2ms, whole, pebble, 256, 44, 10, 4.40, ≥ 4.5",
	}
	if got := (&page{tables: []*table{tab}}).missed(); len(tab.rows) != len(p.figures) || !slices.Equal(got, want) {
		t.Errorf("%d rows, missed: %q", len(tab.rows), got)
	}
}

func TestLimitsHaveAVerdict(t *testing.T) {
	for got, want := range map[float64]string{60: met, 60.1: missed} {
		if cells := under(got, 60, " us"); cells[0] != "≤ 60 us" || cells[1] != want {
			t.Errorf("%v: %q", got, cells)
		}
	}
	if cells := under(61, 0, " us"); cells[0] != "" || cells[1] != "" {
		t.Errorf("without a limit: %q", cells)
	}
}

func TestBusyIsAllButIdle(t *testing.T) {
	for line, want := range map[string]time.Duration{
		"cpu  100 20 300 4000 500 6 70 8 0 0": 5040 * time.Millisecond,
		"cpu0 1 1 1 1 1 1 1 1":                0,
		"cpu 1 2 3":                           0,
		"unknown":                             0,
	} {
		if got := busyIn(line); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
}

// The program that is measured is the one that is shipped.
func TestProgramIsLinkedAsByMake(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if flags, ok := strings.CutPrefix(line, "LDFLAGS"); ok {
			if !strings.Contains(flags, "= "+linkFlags+" -X ") {
				t.Errorf("the Makefile links with%s; the benchmarks with %q", flags, linkFlags)
			}
			return
		}
	}
	t.Error("the Makefile has no LDFLAGS")
}
