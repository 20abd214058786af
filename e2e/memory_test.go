//go:build e2e

package e2e

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// memoryGroup creates a control group with a memory limit in MiB, and returns the command
// prefix that runs a program in it, and a function that changes the limit.
func memoryGroup(t *testing.T, mib int64) (within []string, limit func(mib int64)) {
	t.Helper()
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil && strings.Contains(string(b), "memory") {
		root, file = "/sys/fs/cgroup", "memory.max"
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0o600); err != nil {
			t.Fatalf("this test limits memory by a control group and needs to be root: %v", err)
		}
	}
	dir := filepath.Join(root, fmt.Sprintf("balefire-e2e-%d-%s", os.Getpid(), strings.ReplaceAll(filepath.Base(t.Name()), "/", "-")))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatalf("this test limits memory by a control group and needs to be root: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	limit = func(mib int64) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(mib<<20, 10)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	limit(mib)
	return []string{"/bin/sh", "-c", `echo $$ > ` + filepath.Join(dir, "cgroup.procs") + ` && exec "$0" "$@"`}, limit
}

// TestSmallMachineOpensWhatItAccepted checks I1, I13 and I15: a node with 128 or 256 MiB
// accepts tasks until it returns FULL, and stays alive; killed twice at that limit,
// it reopens its store, also with a tenth less memory, and runs every task that it
// accepted.
func TestSmallMachineOpensWhatItAccepted(t *testing.T) {
	for _, tt := range []struct {
		mib    int64
		body   int
		engine string
	}{
		{128, 1 << 10, "nutsdb"},
		{256, 4000, "nutsdb"},
		{128, 4000, "pebble"},
		{256, 4000, "pebble"},
	} {
		t.Run(fmt.Sprintf("%s-%d", tt.engine, tt.mib), func(t *testing.T) {
			within, limit := memoryGroup(t, tt.mib)
			a, b := pair(t, config{engine: tt.engine, limits: "  done_count: 100000\n"}) // the test reads the end of every task
			b.stop()
			a.stop()
			a.trace = within
			a.start()
			p, body := newAcknowledged(), make([]byte, tt.body)
			_, _ = rand.Read(body) // zeros would be compressed
			full := a.fillUntilFull(p, wire.Request{Target: "b", Kind: "sum", Body: body})
			t.Logf("%d tasks of %d bytes were accepted, with %d MiB of memory; then: %v", p.count(), tt.body, a.resident()>>20, full)
			pending := p.count()
			a.kill()
			a.opened()
			a.kill()
			limit(tt.mib * 9 / 10)
			a.opened()
			if st, err := a.Status(t.Context()); err != nil || st.Outbox["PENDING"] < pending {
				t.Errorf("%d of %d tasks are pending after the start, %v", st.Outbox["PENDING"], pending, err)
			}
			t.Logf("opened with a limit of %d MiB, using %d MiB of memory", tt.mib*9/10, a.resident()>>20)
			b.start()
			p.checkAllEnd(t, a, "SUCCESS")
			if !a.alive() {
				t.Errorf("the node exited: %s", a.tail())
			}
		})
	}
}

// opened launches the node and waits until it has opened its store. It may still refuse new
// tasks.
func (m *machine) opened() {
	m.t.Helper()
	m.launch()
	m.until("it has opened its store", func() bool {
		if !m.alive() {
			m.t.Fatalf("%s exited instead of opening: %s", m.name, m.tail())
		}
		_, err := m.Status(m.t.Context())
		return err == nil
	})
}

// fillUntilFull submits until the node refuses, and returns the error.
func (m *machine) fillUntilFull(p *acknowledged, r wire.Request) error {
	m.t.Helper()
	for p.count() < 200_000 {
		if errs := p.submit(m.t.Context(), m, 500, r); len(errs) > 0 {
			if err := errs[0]; !errors.Is(err, wire.ErrFull) {
				m.t.Fatalf("submit: %v\n%s", err, m.tail())
			}
			return errs[0]
		}
	}
	m.t.Fatal("200 000 tasks were accepted and none was refused")
	return nil
}

// TestStoreMovesToASmallerMachine checks I1 and I15: a NutsDB store that was filled with 384 MiB of
// memory is refused with 128, with the memory that it needs and the way to Pebble; it is
// converted in these 128 MiB, and every task that it accepted runs there.
func TestStoreMovesToASmallerMachine(t *testing.T) {
	const before, after = 384, 128
	within, limit := memoryGroup(t, before)
	a, b := pair(t, config{engine: "nutsdb", limits: "  done_count: 100000\n"}) // the test reads the end of every task
	b.stop()
	a.stop()
	a.within = within
	a.start()
	p, body := newAcknowledged(), make([]byte, 1<<10)
	_, _ = rand.Read(body) // zeros would be compressed
	full := a.fillUntilFull(p, wire.Request{Target: "b", Kind: "sum", Body: body})
	t.Logf("%d tasks were accepted, with %d MiB of memory; then: %v", p.count(), a.resident()>>20, full)
	a.kill()
	limit(after)
	a.launch()
	a.died()
	if text := a.tail(); !strings.Contains(text, "these need about ") || !strings.Contains(text, "store migrate --to pebble") {
		t.Errorf("it does not say what to do: %s", text)
	}
	a.must("store", "migrate", "--to", "pebble")
	a.env = []string{"BALEFIRE_STORE_ENGINE=pebble"}
	a.opened()
	t.Logf("opened with %d MiB of memory", a.resident()>>20)
	b.start()
	p.checkAllEnd(t, a, "SUCCESS")
	if !a.alive() {
		t.Errorf("the node exited: %s", a.tail())
	}
}
