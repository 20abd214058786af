package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/balefire/balefire/datadir"
)

// Targets of a shared queue.
const (
	queueRate  = 2000 // tasks/s
	queueRival = 1.   // of NATS
	queueSlow  = 5.   // of NATS, with a slower disk
)

// rivalLeast is the least number of messages of NATS that a queue is compared with: 500 are
// stored in less than a tenth of a second, which says nothing.
const rivalLeast = 2000

// queue measures a shared queue of five nodes, compared with NATS JetStream in the same run.
func (p *plan) queue(t *table) error {
	t.title = "A shared queue"
	t.intro = fmt.Sprintf("%[1]d nodes, each a process, one of them the home of the queue; all of them, including the home, run tasks with the built-in handler `discard`. NutsDB. A task counts when its result is on disk at the node that submitted it. "+
		"%[2]q: the home submits, so it is origin, home and one of five owners; %[3]q: another node submits, so a task is sent to the home, from there to its owner, and its result takes the way back over both. For comparison NATS JetStream as above. The first row of each disk speed is the median of %[4]d runs; the others are single runs.", queueNodesCount, fromHome, fromMember, times)
	t.head = []string{"fsync", "submitted", "slots a node", "tasks/s", "target", "", "NATS messages/s", "ratio", "target", "", "p50", "p99", "CPU a task", "commits a task", "cores: ours", "others'"}
	t.bounds = fmt.Sprintf("at the normal disk speed, CPU: five nodes and the load share %d cores, and each task is sealed, signed and checked three times: for its home, for its owner, and its result. With a slow disk also the commits in series, and with few slots only those.", runtime.NumCPU())
	for _, c := range []struct {
		slow  time.Duration
		tasks int
		least float64
	}{{0, 20_000, queueRival}, {extra, 8_000, queueSlow}} {
		r, err := p.median(func() (result, error) {
			return p.passed(rival{slow: c.slow, always: true, flying: flying}, max(c.tasks/p.scale/4, rivalLeast))
		})
		if err != nil {
			return err
		}
		rival := r.rate()
		for _, s := range []struct {
			from  string
			slots int
			often func(func() (result, error)) (result, error)
		}{{fromMember, queueSlots, p.median}, {fromMember, 0, just}, {fromHome, queueSlots, just}} {
			r, err := s.often(func() (result, error) {
				return p.worked(s.from, pairConfig{slow: c.slow, slots: s.slots}, p.load(ended, c.tasks, flying))
			})
			if err != nil {
				return err
			}
			slots, target, judged := defaultSlots(), "", ""
			if s.slots > 0 {
				slots = fmt.Sprint(s.slots)
			}
			if c.slow == 0 {
				target, judged = fmt.Sprintf("≥ %d", queueRate), verdict(r.rate() >= queueRate)
			}
			ratio := r.rate() / rival
			t.row(disk(c.slow), s.from, slots, rate(r.rate()), target, judged, rate(rival), fmt.Sprintf("%.1f", ratio), fmt.Sprintf("≥ %.0f", c.least), verdict(ratio >= c.least),
				ms(r.P50), ms(r.P99), us(r.cpu())+" us", us(float64(r.Usage.Commits+r.Other.Commits)/float64(max(r.Tasks, 1))), us((r.Usage.cpu()+r.Other.cpu()).Seconds()/r.Elapsed.Seconds()), us(r.others()))
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
	s.engine = datadir.EngineNuts
	c, err := newQueueNodes(dir, s)
	if err != nil {
		return r, err
	}
	profile := ""
	if p.profiles != "" {
		profile = filepath.Join(p.profiles, fmt.Sprintf("queue-%s-%v-%d", from[strings.LastIndexByte(from, ' ')+1:], s.slow, s.slots))
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
		fmt.Fprintf(p.log, "       queue, submitted %s, +%v, %d slots: %.0f/s, p50 %v, p99 %v; CPU %.0f us, commits %.2f a task; others used %.1f cores\n", from, s.slow, s.slots, r.rate(), r.P50, r.P99,
			r.cpu(), float64(r.Usage.Commits+r.Other.Commits)/float64(max(r.Tasks, 1)), r.others())
	}
	return r, errors.Join(err, c.end())
}
