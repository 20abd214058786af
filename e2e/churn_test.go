//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// TestChurn checks S49 on a NutsDB store with small segments: after 10 000 tasks the
// space of deleted records is freed, down to twice the live data plus two segments.
// After a kill and a restart, records past their retention are gone, tasks past
// their time to live have expired, and all 30 000 pending tasks are there; the
// test logs the time and memory of that start.
func TestChurn(t *testing.T) {
	const total, pending, segment, kept = 10_000, 30_000, 4 << 20, 500
	c := config{engine: "nutsdb", store: "  segment: 4MiB\n", kinds: "  - {kind: gone, type: discard, allow: ['role:send']}\n"}
	c.limits = fmt.Sprintf("  done_count: %d\n", 2*kept)
	a, b := pair(t, c)
	p := newAcknowledged()
	request := wire.Request{Target: "b", Kind: "gone", Body: make([]byte, 1000)}
	began := time.Now()
	a.fillUp(p, total, request)
	a.waitIdle()
	t.Logf("counted: %d tasks through both nodes in %s", total, time.Since(began).Round(time.Millisecond))
	for _, m := range []*machine{a, b} {
		before := m.stats()
		if err := m.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := m.stats()
		t.Logf("%s: %d KiB on disk before, %d after, %d of them live in %d records", m.name, before.DiskBytes>>10, after.DiskBytes>>10, after.LiveBytes>>10, after.Keys)
		if limit := 2*after.LiveBytes + 2*segment; after.DiskBytes > limit || before.DiskBytes < limit {
			t.Errorf("S49: %s had %d bytes on disk and has %d, want at most %d, and more before", m.name, before.DiskBytes, after.DiskBytes, limit)
		}
	}
	b.stop()
	late, waiting := newAcknowledged(), newAcknowledged()
	brief := request
	brief.TTL = wire.Duration(3 * time.Second)
	late.submit(t.Context(), a, 50, brief)
	a.fillUp(waiting, pending, request)
	a.kill()
	pause(time.Duration(brief.TTL))
	a.env = []string{fmt.Sprintf("BALEFIRE_LIMITS_DONE_COUNT=%d", kept)}
	began = time.Now()
	a.start()
	t.Logf("counted: %d tasks pending: the node accepted work after %s, with %d MiB of memory", pending, time.Since(began).Round(time.Millisecond), a.resident()>>20)
	late.checkAllEnd(t, a, "EXPIRED")
	a.until("records past their retention are gone", func() bool {
		st, err := a.Status(t.Context())
		return err == nil && st.Outbox["SUCCESS"] <= kept
	})
	if st, err := a.Status(t.Context()); err != nil || st.Outbox["PENDING"] != pending {
		t.Errorf("%d of %d tasks are pending after the start, %v", st.Outbox["PENDING"], pending, err)
	}
	a.kill()
	checkSlowStart(t, a, pending)
}

// checkSlowStart checks S50 and starts a on a disk that reads slowly: while opening, a
// reports its progress and is healthy, and afterwards it has all its tasks.
func checkSlowStart(t *testing.T, a *machine, pending int) {
	t.Helper()
	a.trace = []string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pread64", "-e", "inject=pread64:delay_enter=20ms"}
	const says = "opening the store"
	said := strings.Count(a.logged(), says)
	began := time.Now()
	a.launch()
	var starting error
	a.until("the log shows the progress", func() bool {
		if err := a.Ready(t.Context()); errors.Is(err, wire.ErrStarting) {
			starting = err
		}
		return strings.Count(a.logged(), says) > said
	})
	if !a.alive() {
		t.Errorf("the node exited while opening: %s", a.tail())
	}
	if err := a.Healthy(t.Context()); err != nil || starting == nil {
		t.Errorf("S50: while opening: ready: %v, healthy: %v", starting, err)
	}
	t.Logf("answer while opening: %v", starting)
	a.ready()
	t.Logf("with slow reads the node accepted work after %s", time.Since(began).Round(time.Millisecond))
	if st, err := a.Status(t.Context()); err != nil || st.Outbox["PENDING"] != pending {
		t.Errorf("S50: %d of %d tasks are pending after the start, %v", st.Outbox["PENDING"], pending, err)
	}
	a.kill() // a graceful stop would read for a long time
}

// logged returns the whole log of the node.
func (m *machine) logged() string {
	m.t.Helper()
	b, err := os.ReadFile(m.logs)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(b)
}

// fillUp submits tasks until the given number has been acknowledged.
func (m *machine) fillUp(p *acknowledged, total int, r wire.Request) {
	m.t.Helper()
	for p.count() < total {
		if errs := p.submit(m.t.Context(), m, 1000, r); errs != nil {
			m.t.Fatalf("submit: %v", errs[0])
		}
	}
}

func (m *machine) stats() wire.StoreStats {
	m.t.Helper()
	st, err := m.StoreStats(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return st
}

// resident returns the memory of the node's process, in bytes.
func (m *machine) resident() (bytes int64) {
	m.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	m.t.Fatalf("no resident set in %s", b)
	return 0
}
