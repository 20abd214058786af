package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Targets of a shared queue, of NATS.
const (
	queueRival = 1.5 // with default settings
	queueSlow  = 8.  // with a slower disk
	queueMany  = 2.  // with queueSlots
	queueBoth  = 10. // with both
)

// queue measures a shared queue of five nodes, compared with NATS JetStream in the same run.
func (p *plan) queue(t *table) error {
	t.title = "A shared queue"
	t.intro = fmt.Sprintf("%[1]d nodes, each a process, one of them the home of the queue; all of them, including the home, run tasks with the built-in handler `discard`, with `on_crash: retry`. A task counts when its result is on disk at the node that submitted it. "+
		"%[2]q: the home submits, so it is origin, home and one of five owners; %[3]q: another node submits, so a task is sent to the home, from there to its owner, and its result takes the way back over both. With the default slots the heap limit is the default, too. "+
		"For comparison NATS JetStream: nats-server with `sync_interval: always`, %[5]d messages in flight, measured once in this run. The rates of tasks submitted %[3]s and of NATS are medians of %[4]d runs; the others are single runs.", queueNodesCount, fromHome, fromMember, times, flying)
	t.head = []string{"store", "fsync", "submitted", "slots a node", "tasks/s", "NATS messages/s", "ratio", "target", "", "p50", "p99", "CPU a task", "commits a task", "cores: ours", "others'"}
	t.bounds = fmt.Sprintf("at the normal disk speed, CPU: five nodes and the load share %d cores, and each task is sealed, signed and checked three times: for its home, for its owner, and its result. With a slow disk also the commits in series.", runtime.NumCPU())
	for _, c := range []struct {
		slow        time.Duration
		tasks       int
		least, many float64
	}{{0, 20_000, queueRival, queueMany}, {extra, 8_000, queueSlow, queueBoth}} {
		nats, err := p.always(c.slow)
		if err != nil {
			return err
		}
		for _, e := range p.engines() {
			for _, s := range []struct {
				from  string
				slots int
				least float64
				often func(func() (result, error)) (result, error)
			}{{fromMember, queueSlots, c.many, p.median}, {fromMember, 0, c.least, p.median}, {fromHome, queueSlots, c.many, just}} {
				r, err := s.often(func() (result, error) {
					return p.worked(s.from, pairConfig{engine: e, slow: c.slow, slots: s.slots}, p.load(ended, c.tasks, flying))
				})
				if err != nil {
					return err
				}
				cells := []any{e, disk(c.slow), s.from, slotsOf(s.slots), rate(r.rate()), rate(nats.rate())}
				cells = append(cells, ratio(r.rate()/nats.rate(), leastOf(e, c.slow, s.least))...)
				cells = append(cells, ms(r.P50), ms(r.P99), us(r.cpu())+" us", us(float64(r.Usage.Commits+r.Other.Commits)/float64(max(r.Tasks, 1))))
				t.row(append(cells, cores(r)...)...)
			}
		}
	}
	return nil
}

// just runs a measurement once.
func just(f func() (result, error)) (result, error) { return f() }

// Where tasks are submitted.
const (
	fromHome   = "at the home"
	fromMember = "at a member"
)

// queueSlots is the number of handlers per node where there should be enough.
const queueSlots = 64

// worked runs one load on new nodes.
func (p *plan) worked(from string, s pairConfig, l load) (r result, err error) {
	dir, err := p.folder()
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	c, err := newQueueNodes(dir, s)
	if err != nil {
		return r, err
	}
	profile := ""
	if p.profiles != "" {
		profile = filepath.Join(p.profiles, fmt.Sprintf("queue-%s-%s-%v-%d", s.engine, from[strings.LastIndexByte(from, ' ')+1:], s.slow, s.slots))
		l.Profile = profile + "-a"
	}
	l.Target = "queue:" + queueName
	who, others := c.nodes[0], c.nodes[1:]
	if from == fromMember {
		who, others = c.nodes[1], append([]*proc{c.nodes[0]}, c.nodes[2:]...)
	}
	r, err = measured(who, request{Do: "load", Load: l}, profile, others...)
	if err == nil && r.Bad > 0 {
		err = fmt.Errorf("%d of %d tasks ended in an unexpected state", r.Bad, r.Tasks)
	}
	if err == nil {
		fmt.Fprintf(p.log, "       queue, %s, submitted %s, +%v, %d slots: %.0f/s, p50 %v, p99 %v; CPU %.0f us, commits %.2f a task; others used %.1f cores\n", s.engine, from, s.slow, s.slots, r.rate(), r.P50, r.P99,
			r.cpu(), float64(r.Usage.Commits+r.Other.Commits)/float64(max(r.Tasks, 1)), r.others())
	}
	return r, errors.Join(err, c.end())
}
