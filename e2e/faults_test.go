//go:build e2e

package e2e

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Faults are injected into the nodes of a fleet, several at a time, each into a node that
// has none, and end automatically.
type faults struct {
	fleet *fleet
	rand  *rand.Rand
	ends  map[int]end // by the index of the node
	count map[string]int
}

// An end is the time when a fault ends, and the function that ends it.
type end struct {
	at     time.Time
	repair func()
}

func newFaults(f *fleet, seed uint64) *faults {
	return &faults{fleet: f, rand: rand.New(rand.NewPCG(seed, 0)), ends: map[int]end{}, count: map[string]int{}}
}

// total returns the number of faults.
func (f *faults) total() (n int) {
	for _, c := range f.count {
		n += c
	}
	return n
}

// next ends the faults that are due and starts a new one. At least two nodes have no fault
// at any time.
func (f *faults) next(t *testing.T) {
	t.Helper()
	f.over(time.Now())
	if len(f.ends) > 2 {
		return
	}
	i := f.rand.IntN(len(f.fleet.nodes))
	for _, taken := f.ends[i]; taken; _, taken = f.ends[i] {
		i = (i + 1) % len(f.fleet.nodes)
	}
	name, lasts, repair := f.begin(t, i)
	f.count[name]++
	f.ends[i] = end{time.Now().Add(lasts), repair}
}

// over ends the faults that are due.
func (f *faults) over(now time.Time) {
	for i, e := range f.ends {
		if !now.Before(e.at) {
			e.repair()
			delete(f.ends, i)
		}
	}
}

// between returns a random duration.
func (f *faults) between(least, most time.Duration) time.Duration {
	return least + time.Duration(f.rand.Int64N(int64(most-least)))
}

// past is longer than a lease lasts without renewal.
const past = 17 * time.Second

func (f *faults) begin(t *testing.T, i int) (name string, lasts time.Duration, repair func()) {
	t.Helper()
	m, port := f.fleet.nodes[i], f.fleet.hosts[i].Port
	if !m.alive() {
		t.Fatalf("%s has exited unexpectedly: %s", m.name, m.tail())
	}
	short := f.between(500*time.Millisecond, 4*time.Second)
	switch f.rand.IntN(16) {
	case 0, 1, 2, 3:
		m.kill()
		return "kill -9", short / 4, func() { m.launch() }
	case 4, 5:
		m.stop()
		return "restart", short / 4, func() { m.launch() }
	case 6, 7, 8:
		m.signal(syscall.SIGSTOP)
		return "pause", short, func() { m.signal(syscall.SIGCONT) }
	case 9:
		m.signal(syscall.SIGSTOP)
		return "pause past the lease", past, func() { m.signal(syscall.SIGCONT) }
	case 10, 11:
		port.Cut()
		return "cut", 2 * short, port.Heal
	case 12:
		port.CutIn()
		return "hears nobody", 2 * short, port.Heal
	case 13:
		port.CutOut()
		return "nobody hears it", 2 * short, port.Heal
	case 14:
		others := f.fleet.hosts[:i:i]
		for _, h := range slices.Concat(others, f.fleet.hosts[i+1:])[:2] {
			port.Cut(h.Port.Addr())
		}
		return "partition 2|3", 2 * short, port.Heal
	}
	// Statements with a future timestamp wait at other nodes: the clocks of nodes that sign
	// tasks and results are only ever behind.
	by := -time.Hour
	if i >= firstWorker && f.rand.IntN(2) == 0 {
		by = time.Hour
	}
	m.clockWrong(by)
	return "clock wrong by an hour", 2 * short, func() { m.clockWrong(0) }
}

// end ends all faults and waits until every node accepts tasks.
func (f *faults) end() {
	for _, e := range f.ends {
		e.repair()
	}
	clear(f.ends)
	for _, m := range f.fleet.nodes {
		m.ready()
	}
}
