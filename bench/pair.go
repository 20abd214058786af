package main

import (
	"errors"
	"path/filepath"
	"time"
)

// A pairConfig says which two nodes to run.
type pairConfig struct {
	engine string
	slow   time.Duration // added to each fsync of both
	held   bool          // what the second accepts it does not run
	slots  int           // handlers of the second at a time; 0: its own number
}

// A pair is two nodes of one mesh, each a process of its own: a submits, b
// receives.
type pair struct {
	a, b *proc
	dirA string
}

// newPair makes two nodes that know each other, in fresh folders below dir, and
// runs them.
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

// rateMemory is the heap limit where rates are measured: tasks that are held pile
// up as they never do, and the node's own limit would have the collector work for
// a case that it is not there for.
const rateMemory = 2 << 30

func (p *pair) end() error { return errors.Join(p.a.end(), p.b.end()) }

// A result is what a load measured at both ends.
type result struct {
	report
	Other  usage         // of the receiver, or of all other nodes
	Others time.Duration // CPU of everything else on the machine meanwhile, strace too
}

// others returns the cores that everything else used.
func (r result) others() float64 { return r.Others.Seconds() / r.Elapsed.Seconds() }

// perTask returns microseconds.
func (r result) perTask(d time.Duration) float64 { return d.Seconds() * 1e6 / float64(max(r.Tasks, 1)) }

// cpu returns the microseconds of both ends for one task.
func (r result) cpu() float64 { return r.perTask(r.Usage.cpu() + r.Other.cpu()) }

// perCommit returns how many tasks one commit stands for.
func (r result) perCommit(u usage) float64 { return float64(r.Tasks) / float64(max(u.Commits, 1)) }

// allocated returns KiB for one task.
func (r result) allocated(u usage) float64 {
	return float64(u.AllocBytes) / 1024 / float64(max(r.Tasks, 1))
}

// run puts a load on the pair. With a profile both write one, name-a and name-b.
func (p *pair) run(l load, profile string) (result, error) {
	l.Target = "b"
	if profile != "" {
		l.Profile = profile + "-a"
	}
	return measured(p.a, request{Do: "load", Load: l}, profile, p.b)
}

// measured gives an order to one child and measures others meanwhile. With a profile
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

// together returns what children have used.
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
