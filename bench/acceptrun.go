package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"runtime"
	"time"
)

// Targets of tasks. Those of their rates are in proportion to NATS: see figure.
const (
	acceptedCPU    = 60. // microseconds of both ends, without strace, which costs CPU
	wholeAllocated = 30. // KiB, of both ends
)

// accept measures tasks that are accepted by their target but not run.
func (p *plan) accept(t *table) error {
	t.title = "Accepted tasks"
	t.intro = "A task counts when its home has the acknowledgement on disk; the target has then stored the task. The target does not run it. The target of the rate is in the comparison with NATS below."
	t.head = []string{"store", "fsync", "in flight", "tasks/s", "p50", "p99", "CPU a task: sender", "receiver", "both", "limit", "", "cores: ours", "others'"}
	t.bounds = fmt.Sprintf("at the normal disk speed the CPU of both processes on %d cores; with a slow disk three commits in series (home, target, home), and therefore the number of tasks in flight.", runtime.NumCPU())
	for _, e := range p.engines() {
		for _, c := range []struct {
			slow     time.Duration
			inFlight int
			tasks    int
			least    float64 // of NATS
		}{{0, flying, 80_000, 12}, {extra, flying, 40_000, 50}, {extra, 4 * flying, 60_000, 0}} {
			r, err := p.median(func() (result, error) {
				return p.once(pairConfig{engine: e, slow: c.slow, held: true}, p.load(accepted, c.tasks, c.inFlight), "")
			})
			if err != nil {
				return err
			}
			if c.least > 0 {
				p.figures = append(p.figures, figure{"accepted", e, c.slow, "", r.rate(), c.least})
			}
			limit := acceptedCPU
			if c.slow > 0 {
				limit = 0
			}
			cells := append([]any{e, disk(c.slow), c.inFlight}, walked(r)...)
			cells = append(cells, under(r.cpu(), limit, " us")...)
			t.row(append(cells, cores(r)...)...)
		}
	}
	return nil
}

// walked returns the cells of a load of tasks.
func walked(r result) []any {
	a, b := r.perTask(r.Usage.cpu()), r.perTask(r.Other.cpu())
	return []any{rate(r.rate()), ms(r.P50), ms(r.P99), us(a) + " us", us(b) + " us", us(a+b) + " us"}
}

// cores returns the cells of the cores in use.
func cores(r result) []any {
	return []any{us((r.Usage.cpu() + r.Other.cpu()).Seconds() / r.Elapsed.Seconds()), us(r.others())}
}

// slotsOf names a number of handlers of a node; 0: the default.
func slotsOf(n int) string {
	if n == 0 {
		return fmt.Sprintf("%d, the default", max(4, 2*runtime.NumCPU()))
	}
	return fmt.Sprint(n)
}

// ended measures whole tasks: handler, result and commit at home.
func (p *plan) ended(t *table) error {
	t.title = "Whole tasks"
	t.intro = "A task counts when its result is on disk at its home: accepted, run (its start is written with its end or before), result signed and sealed, committed. The handler is the built-in `discard`, with `on_crash: retry`. The target of the rate is in the comparison with NATS below. Allocated is what both processes allocate."
	t.head = []string{"store", "fsync", "slots", "tasks/s", "p50", "p99", "CPU a task: sender", "receiver", "both", "allocated a task", "limit", "", "cores: ours", "others'"}
	t.bounds = "with many slots and the normal disk speed, CPU; with a slow disk the commits in series; with few slots the ends that are not on disk yet, at most 64 or four for each slot."
	for _, e := range p.engines() {
		for _, c := range []struct {
			slow  time.Duration
			slots int
			tasks int
			least float64 // of NATS
		}{{0, flying, 30_000, 5}, {0, 0, 20_000, 4}, {extra, flying, 20_000, 5}} {
			r, err := p.median(func() (result, error) {
				return p.once(pairConfig{engine: e, slow: c.slow, slots: c.slots}, p.load(ended, c.tasks, flying), "")
			})
			if err != nil {
				return err
			}
			slots := slotsOf(c.slots)
			p.figures = append(p.figures, figure{"whole", e, c.slow, slots, r.rate(), c.least})
			kib := r.allocated(r.Usage) + r.allocated(r.Other)
			cells := append([]any{e, disk(c.slow), slots}, walked(r)...)
			cells = append(append(cells, us(kib)+" KiB"), under(kib, wholeAllocated, " KiB")...)
			t.row(append(cells, cores(r)...)...)
		}
	}
	return nil
}

// parts measures the CPU time of a task by parts.
func (p *plan) parts(t *table) error {
	t.title = "CPU of a task, by part"
	t.intro = "Microseconds, from CPU profiles of both processes in separate runs. A sample is attributed to the innermost package of this module, or library, on its stack."
	t.head = []string{"part"}
	t.bounds = "each part is spent on every task; work that is done once for a group (a signature, an fsync, a system call of the network) becomes cheaper per task with more tasks in flight."
	var columns []map[string]float64
	for _, e := range p.engines() {
		for _, c := range []struct {
			name  string
			until string
			scene pairConfig
			tasks int
		}{{"accepted", accepted, pairConfig{engine: e, held: true}, 60_000}, {"whole", ended, pairConfig{engine: e, slots: flying}, 20_000}} {
			two, err := p.profiled(c.scene, p.load(c.until, c.tasks, flying))
			if err != nil {
				return err
			}
			columns = append(columns, two...)
			t.head = append(t.head, c.name+", "+e+": sender", "receiver")
		}
	}
	t.byPart(columns)
	return nil
}

// profiled runs a load and returns the microseconds per task of each part, of the sender
// and of the receiver.
func (p *plan) profiled(s pairConfig, l load) ([]map[string]float64, error) {
	name := filepath.Join(cmp.Or(p.profiles, p.dir), l.Until+"-"+s.engine)
	r, err := p.once(s, l, name)
	if err != nil {
		return nil, err
	}
	var out []map[string]float64
	for _, end := range []struct {
		suffix string
		used   usage
	}{{"-a", r.Usage}, {"-b", r.Other}} {
		c, err := r.byPart(name+end.suffix, end.used)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}
