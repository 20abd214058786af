//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

// TestPowerCut holds I1 and S48 where kill -9 proves nothing, for it keeps dirty
// pages: the folder of a node under load is copied, file by file in the order of
// names, and in the copy all that was written after the last commit that had
// returned is cut off, zeroed or garbled. The copy opens, and every task that was
// acknowledged before the copying began is in it.
//
// Where the last commit ended, a NutsDB store says itself (its mark). What Pebble
// makes of lost and torn writes is held by the tests of store/pebble, below a
// file system that loses them.
func TestPowerCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	a, b := pair(t, config{engine: "nutsdb"})
	b.stop() // the tasks wait for it
	p := newPromises()
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for ctx.Err() == nil {
				p.submit(ctx, a, 4, node.Request{Target: "b", Kind: "mark", Body: make([]byte, 300)})
				pause(20 * time.Millisecond)
			}
		})
	}
	for round := range rounds(15) {
		pause(time.Duration(rng.IntN(50)) * time.Millisecond)
		promised := p.all()
		twin := a.copied(t)
		how := twin.loseTail(rng)
		twin.start()
		for _, id := range promised {
			if _, err := twin.Task(t.Context(), id); err != nil {
				t.Errorf("I1: round %d, %s: %s was acknowledged: %v", round, how, id, err)
			}
		}
		twin.kill()
		os.RemoveAll(twin.dir)
	}
	cancel()
	load.Wait()
	t.Logf("%d tasks acknowledged", len(p.all()))
}

// TestBitFlip holds S48 on real files: a node whose acknowledged data was damaged
// says so and what to do, and does not start over it; what it says to do brings
// every other record back, and the node runs on.
func TestBitFlip(t *testing.T) {
	a, b := pair(t, config{engine: "nutsdb"})
	b.stop()
	p := newPromises()
	for range 50 {
		p.submit(t.Context(), a, 1, node.Request{Target: "b", Kind: "mark", Body: make([]byte, 1000)})
	}
	a.stop()
	log := filepath.Join(a.dir, "store", "nutsdb", "gen-000001", "0.dat")
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(bytes.TrimRight(raw, "\x00"))/2] ^= 1
	if err := os.WriteFile(log, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := a.command("run"); err == nil || !strings.Contains(out, "salvage") {
		t.Errorf("a node with damaged data: %v, %s", err, out)
	}
	saved := filepath.Join(shortDir(t), "a")
	a.must("store", "salvage", saved)
	if out, err := a.command("store", "check"); err == nil || !strings.Contains(out, "damaged") {
		t.Errorf("a check of damaged data: %v, %s", err, out)
	}
	a.must("store", "check", "--dir", saved)
	// The keys stay, the store becomes the saved one.
	if err := os.Rename(filepath.Join(a.dir, "store"), filepath.Join(a.dir, "store.damaged")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(saved, "store"), filepath.Join(a.dir, "store")); err != nil {
		t.Fatal(err)
	}
	a.start()
	lost := 0
	for _, id := range p.all() {
		if _, err := a.Task(t.Context(), id); err != nil {
			lost++
		}
	}
	if lost > 1 {
		t.Errorf("%d of 50 tasks are lost with one damaged byte", lost)
	}
	b.start()
	a.until("what is left is done", a.rests)
}

// copied returns a machine in a copy of this one's folder as it is at some
// moments between now and then, with addresses of its own.
func (m *machine) copied(t *testing.T) *machine {
	t.Helper()
	dir := filepath.Join(shortDir(t), m.name)
	err := filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error { // in the order of names
		rel, _ := filepath.Rel(m.dir, path)
		to := filepath.Join(dir, rel)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(to, 0o700)
		case !d.Type().IsRegular() || d.Name() == "LOCK" || d.Name() == "log":
			return nil
		}
		out, err := exec.Command("cp", "--sparse=always", "-p", path, to).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	twin := &machine{t: t, name: m.name, dir: dir, marks: filepath.Join(dir, "marks"), Client: client.New(filepath.Join(dir, "node.sock"))}
	twin.env = []string{"BALEFIRE_NET_LISTEN=" + strings.Join(listen(t), ",")}
	t.Cleanup(twin.kill)
	return twin
}

// loseTail loses what the store was given after its last acknowledged commit,
// in one of the ways in which a disk does.
func (m *machine) loseTail(rng *rand.Rand) (how string) {
	m.t.Helper()
	gen := filepath.Join(m.dir, "store", "nutsdb", "gen-000001")
	mark, err := os.ReadFile(filepath.Join(gen, ".acked"))
	if err != nil || len(mark) != 28 {
		m.t.Fatalf("the mark of the store: %x, %v", mark, err)
	}
	segment, from := binary.LittleEndian.Uint64(mark[8:]), int64(binary.LittleEndian.Uint64(mark[16:]))
	f, err := os.OpenFile(filepath.Join(gen, fmt.Sprintf("%d.dat", segment)), os.O_RDWR, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Seek(0, 2)
	if err != nil {
		m.t.Fatal(err)
	}
	from = min(size, from+rng.Int64N(2000))
	lost := make([]byte, size-from)
	if _, err := f.ReadAt(lost, from); err != nil {
		m.t.Fatal(err)
	}
	lost = bytes.TrimRight(lost, "\x00") // behind that nothing was written
	clear(lost)
	switch how = []string{"cut", "zeroed", "garbled"}[rng.IntN(3)]; how {
	case "cut":
		err = f.Truncate(from)
	case "garbled":
		for i := range lost {
			lost[i] = byte(rng.Uint32())
		}
		fallthrough
	default:
		_, err = f.WriteAt(lost, from)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return fmt.Sprintf("%s from byte %d of segment %d", how, from, segment)
}
