package main

import (
	"errors"
	"path/filepath"
	"time"
)

// A pairConfig configures two nodes.
type pairConfig struct {
	engine string
	slow   time.Duration // added to each fsync of both
	held   bool          // the second node accepts tasks but does not run them
	slots  int           // handlers of the second at a time; 0: its own number
}

// A pair is two nodes of one mesh, each its own process: a submits, b receives.
type pair struct {
	a, b *proc
	dirA string
}

// newPair creates and runs two paired nodes in new folders below dir.
func newPair(dir string, s pairConfig) (_ *pair, err error) {
	p := &pair{dirA: filepath.Join(dir, "a")}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.end())
		}
	}()
	if p.a, err = spawn("sender", s.slow); err != nil {
		return nil, err
	}
	if p.b, err = spawn("receiver", s.slow); err != nil {
		return nil, err
	}
	if _, err = p.a.ask(request{Do: "open", Open: opening{Dir: p.dirA, Name: "a", Engine: s.engine, Memory: rateMemory}}, nil); err != nil {
		return nil, err
	}
	inv, err := p.a.ask(request{Do: "invite"}, nil)
	if err != nil {
		return nil, err
	}
	_, err = p.b.ask(request{Do: "open", Open: opening{
		Dir: filepath.Join(dir, "b"), Name: "b", Ticket: inv.Text, Engine: s.engine, Memory: rateMemory, Held: s.held, Slots: s.slots,
	}}, nil)
	return p, err
}

// rateMemory is the heap limit where rates are measured: there far more tasks are pending
// than usual, and with the node's own limit the garbage collector would dominate.
const rateMemory = 2 << 30

func (p *pair) end() error { return errors.Join(p.a.end(), p.b.end()) }

// A result is the result of a load at both ends.
type result struct {
	report
	Other  usage         // of the receiver, or of all other nodes
	Others time.Duration // CPU time of all other processes on the machine during the measurement, strace included
}

// others returns the cores used by other processes.
func (r result) others() float64 { return r.Others.Seconds() / r.Elapsed.Seconds() }

// perTask returns microseconds.
func (r result) perTask(d time.Duration) float64 { return d.Seconds() * 1e6 / float64(max(r.Tasks, 1)) }

// cpu returns the microseconds of both ends per task.
func (r result) cpu() float64 { return r.perTask(r.Usage.cpu() + r.Other.cpu()) }

// perCommit returns the number of tasks per commit.
func (r result) perCommit(u usage) float64 { return float64(r.Tasks) / float64(max(u.Commits, 1)) }

// allocated returns KiB per task.
func (r result) allocated(u usage) float64 {
	return float64(u.AllocBytes) / 1024 / float64(max(r.Tasks, 1))
}

// run runs a load on the pair. With a profile both write one, name-a and name-b.
func (p *pair) run(l load, profile string) (result, error) {
	l.Target = "b"
	if profile != "" {
		l.Profile = profile + "-a"
	}
	return measured(p.a, request{Do: "load", Load: l}, profile, p.b)
}

// measured sends a request to one child and measures the others meanwhile. With a profile
// the first of them writes one.
func measured(who *proc, o request, profile string, others ...*proc) (result, error) {
	var before usage
	var machine time.Duration
	got, err := who.ask(o, func() (err error) {
		if profile != "" {
			if _, err := others[0].ask(request{Do: "profile", Path: profile + "-b"}, nil); err != nil {
				return err
			}
		}
		before, err = together(others)
		machine = busy()
		return err
	})
	machine = busy() - machine
	if err != nil {
		return result{}, err
	}
	after, err := together(others)
	if err == nil && profile != "" {
		_, err = others[0].ask(request{Do: "profile"}, nil)
	}
	r := result{report: got.Report, Other: after.since(before)}
	r.Others = max(machine-r.Usage.cpu()-r.Other.cpu(), 0)
	return r, err
}

// together returns the sum of the usage of children.
func together(all []*proc) (sum usage, err error) {
	for _, p := range all {
		a, err := p.ask(request{Do: "usage"}, nil)
		if err != nil {
			return sum, err
		}
		sum = sum.plus(a.Usage)
	}
	return sum, nil
}
