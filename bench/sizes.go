package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/balefire/balefire/datadir"
)

const (
	idleFor    = 5 * time.Second // after a start, before an idle node is measured
	restFor    = 5 * time.Second // after a load, before the remaining memory is measured
	pendings   = 100_000
	idleLimit  = 56 << 20
	binaryMost = 42_000_000
)

var pendingLimit = map[string]int64{datadir.EngineNuts: 450 << 20, datadir.EnginePebble: 200 << 20}

// memory measures the memory of an idle node, and of one with many pending tasks.
func (p *plan) memory(t *table) error {
	t.title = "Memory"
	t.intro = fmt.Sprintf("Resident memory: of the program, alone in a new mesh, %[1]v after its start; and of a node with its default heap limit in a process of the benchmarks, which have NATS in them, too: idle for %[1]v, then with %[2]d pending tasks of %[3]d bytes for a peer that is offline (%[4]v after the last), then of a new process that opened that store.",
		idleFor, pendings/p.scale, bodySize, restFor)
	t.head = []string{"store", "state", "resident", "limit", ""}
	t.bounds = "NutsDB keeps every key with its value in memory, and reads its log at the start; Pebble caches 32 MiB of blocks and tables."
	for _, e := range p.engines() {
		alone, err := p.idleProgram(e)
		if err != nil {
			return err
		}
		t.row(e, "idle, the program", mib(alone), "≤ "+mib(idleLimit), verdict(alone <= idleLimit && alone > 0))
		if err := p.measureMemory(t, e); err != nil {
			return err
		}
	}
	return nil
}

func (p *plan) measureMemory(t *table, engine string) error {
	dir, err := p.folder()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	add := func(state string, rss, limit int64) {
		t.row(engine, state, mib(rss), "≤ "+mib(limit), verdict(rss <= limit))
	}
	two, err := newPair(dir, pairConfig{engine: engine, held: true})
	if err != nil {
		return err
	}
	if err := two.end(); err != nil {
		return err
	}
	open := request{Do: "open", Open: opening{Dir: two.dirA, Engine: engine}}
	err = with("sender", func(c *proc) error {
		if _, err := c.ask(open, nil); err != nil {
			return err
		}
		time.Sleep(idleFor)
		idle, err := c.ask(request{Do: "usage"}, nil)
		if err != nil {
			return err
		}
		t.row(engine, "idle", mib(idle.Usage.RSS), "", "")
		l := load{Target: "b", Until: stored, Tasks: pendings / p.scale, Flying: 8, Size: bodySize, Batch: batchSize}
		if _, err := c.ask(request{Do: "load", Load: l}, nil); err != nil {
			return err
		}
		time.Sleep(restFor)
		full, err := c.ask(request{Do: "usage"}, nil)
		add(fmt.Sprintf("%d pending", l.Tasks), full.Usage.RSS, pendingLimit[engine])
		return err
	})
	if err != nil {
		return err
	}
	return with("sender", func(c *proc) error {
		opened, err := c.ask(open, nil)
		if err != nil {
			return err
		}
		time.Sleep(restFor)
		again, err := c.ask(request{Do: "usage"}, nil)
		add(fmt.Sprintf("the same, opened again in %s", ms(opened.Took)), again.Usage.RSS, pendingLimit[engine])
		return err
	})
}

// with runs f with a child and stops it.
func with(name string, f func(*proc) error) error {
	c, err := spawn(name, 0)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.end())
}

// binary measures the size of the program.
func (p *plan) binary(t *table) error {
	t.title = "Binary"
	t.intro = "`make build`: static and stripped, with all libraries."
	t.head = []string{"program", "size", "limit", ""}
	t.bounds = "the libraries. The libp2p host is assembled from its parts: libp2p's own constructor links WebRTC, WebTransport and WebSocket, 5 MB that no node uses."
	out, err := p.program()
	if err != nil {
		return err
	}
	info, err := os.Stat(out)
	if err != nil {
		return err
	}
	t.row("balefire-node", mb(info.Size()), "≤ "+mb(binaryMost), verdict(info.Size() <= binaryMost))
	return nil
}

// mb formats bytes in the unit of the program's size limit: millions.
func mb(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
