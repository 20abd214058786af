package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/datadir"
)

// The time limits of a shared queue.
const (
	takeLimit = 21 * time.Second // a lease of 15 s, a scan interval of 5 s, and one more
	stopLimit = time.Second
	handLimit = 10 * time.Second
	handTasks = 10_000
	takes     = 50 // kills, and stops
	meshes    = 4  // that run at the same time: they are mostly idle
	takers    = 6  // nodes of each that run tasks: one that was DEAD is assigned nothing for 30 s
)

// takeover measures how long a task is blocked when its owner goes away.
func (p *plan) takeover(t *table) error {
	n := (takes/p.scale + meshes - 1) / meshes
	t.title = "Loss of an owner"
	t.intro = fmt.Sprintf("%d meshes at a time, each of a home and %d nodes that run its tasks. A task records its start, its owner is stopped, and the time until the task records its next start elsewhere is measured; "+
		"then the owner is started again, and the next task is submitted when two members can be granted it. Default settings, except that discovery on the LAN is off: %d nodes on one machine would receive each other's announcements on some 200 sockets. NutsDB.", meshes, takers, meshes*(takers+1))
	t.head = []string{"the owner", "times", "p50", "p99", "limit", ""}
	t.bounds = "after kill -9 the time until members declare a silent node DEAD; the lease, which would expire later, is fenced by the epoch. At a stop the handler, which ends at once when it is told to, and the release of the lease."
	for _, c := range []struct {
		name  string
		limit time.Duration
		away  func(*proc) error
	}{{"kill -9", takeLimit, (*proc).kill}, {"stopped", stopLimit, (*proc).end}} {
		took, err := p.takes(n, c.away)
		if err != nil {
			return err
		}
		p99 := quantile(took, .99)
		fmt.Fprintf(p.log, "       %s: %v\n", c.name, took)
		t.row(c.name, len(took), ms(quantile(took, .5)), ms(p99), "≤ "+c.limit.String(), verdict(p99 <= c.limit))
	}
	return nil
}

// takes stops an owner n times in each of several meshes.
func (p *plan) takes(n int, away func(*proc) error) (all []time.Duration, err error) {
	took, errs := make([][]time.Duration, meshes), make([]error, meshes)
	var wg sync.WaitGroup
	for i := range meshes {
		dir, err := p.folder()
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		wg.Go(func() { took[i], errs[i] = takesIn(dir, n, away) })
	}
	wg.Wait()
	for _, t := range took {
		all = append(all, t...)
	}
	return all, errors.Join(errs...)
}

func takesIn(dir string, n int, away func(*proc) error) (took []time.Duration, err error) {
	note := filepath.Join(dir, "starts")
	worker := opening{Engine: datadir.EngineNuts, Starts: note, Deaf: true}
	c, err := openQueueNodes(dir, append([]opening{{Engine: datadir.EngineNuts, Idle: true, Deaf: true}}, slices.Repeat([]opening{worker}, takers)...), 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	for i := range n {
		given, err := c.nodes[0].ask(request{Do: "give"}, nil)
		if err != nil {
			return nil, err
		}
		first, err := awaitStart(note, 2*i)
		if err != nil {
			return nil, err
		}
		at := first.node
		begin, ended := time.Now(), make(chan error, 1)
		go func() { ended <- away(c.nodes[at]) }()
		second, err := awaitStart(note, 2*i+1)
		if err := errors.Join(err, <-ended); err != nil {
			c.nodes[at] = nil
			return nil, err
		}
		took = append(took, second.at.Sub(begin))
		if _, err := c.nodes[0].ask(request{Do: "cancel", Path: given.Text}, nil); err != nil {
			return nil, err
		}
		if err := errors.Join(c.start(at), c.ready(2)); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// A start is a line that a task wrote.
type started struct {
	at   time.Time
	node int // index in the queue nodes
}

// awaitStart waits for the n-th line of a file, from 0.
func awaitStart(path string, n int) (s started, err error) {
	for end := time.Now().Add(queueNodesTimeout); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		lines := strings.SplitAfter(text(path), "\n")
		if n >= len(lines) || !strings.HasSuffix(lines[n], "\n") {
			continue
		}
		at, name, _ := strings.Cut(strings.TrimSpace(lines[n]), " ")
		ns, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return s, fmt.Errorf("read the start of a task: %w", err)
		}
		s.at = time.Unix(0, ns)
		s.node, err = strconv.Atoi(strings.TrimPrefix(name, "n"))
		return s, err
	}
	return s, fmt.Errorf("start %d of a task did not occur within %v", n, queueNodesTimeout)
}

// handoff measures how fast a queue with pending tasks moves to another home.
func (p *plan) handoff(t *table) error {
	n := handTasks / p.scale
	t.title = "Handoff of a queue"
	t.intro = fmt.Sprintf("Two nodes; the queue is paused and has %d pending tasks of %d bytes. The first time is from the command to hand it over until the new home has all tasks on disk and the old one has none left; then the queue is resumed, and the time until all have ended is measured.", n, bodySize)
	t.head = []string{"store", "fsync", "tasks", "handed over in", "limit", "", "run and ended in"}
	t.bounds = "CPU: the new home checks each task as if it came from its origin, and both homes write it."
	for _, slow := range []time.Duration{0, extra} {
		moved, ended, err := p.handed(slow, n)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.log, "       +%v: %d tasks handed over in %v, ended in %v\n", slow, n, moved, ended)
		t.row(datadir.EngineNuts, disk(slow), n, ms(moved), "≤ "+handLimit.String(), verdict(moved <= handLimit), ms(ended))
	}
	return nil
}

func (p *plan) handed(slow time.Duration, n int) (moved, ended time.Duration, err error) {
	dir, err := p.folder()
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	o := opening{Engine: datadir.EngineNuts, Memory: rateMemory, Slots: queueSlots}
	c, err := openQueueNodes(dir, []opening{o, o}, slow)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	a, b := c.nodes[0], c.nodes[1]
	if _, err := a.ask(request{Do: "pause", On: true}, nil); err != nil {
		return 0, 0, err
	}
	l := load{Target: "queue:" + queueName, Until: accepted, Tasks: n, Flying: 8, Size: bodySize, Batch: batchSize}
	if _, err := a.ask(request{Do: "load", Load: l}, nil); err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	if _, err := a.ask(request{Do: "handoff", Path: "n1"}, nil); err != nil {
		return 0, 0, err
	}
	if err := errors.Join(awaitCount(b, n), awaitCount(a, 0)); err != nil {
		return 0, 0, err
	}
	moved, begin = time.Since(begin), time.Now()
	if _, err := b.ask(request{Do: "pause", On: false}, nil); err != nil {
		return 0, 0, err
	}
	err = awaitCount(b, 0)
	return moved, time.Since(begin), err
}

// awaitCount waits until a node has the given number of tasks of the queue.
func awaitCount(p *proc, n int) error {
	var a response
	for end := time.Now().Add(2 * queueNodesTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var err error
		if a, err = p.ask(request{Do: "count"}, nil); err != nil || a.Count == n {
			return err
		}
	}
	return fmt.Errorf("%s has %d tasks of the queue, want %d, after %v", p.name, a.Count, n, 2*queueNodesTimeout)
}
