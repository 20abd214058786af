//go:build e2e

package e2e

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// TestOwnershipNeverForks checks I3, I4, I5, I6, I7 and I20 on real processes: while more than
// 200 faults are injected into five nodes, 20 000 tasks of a shared queue end. None is
// lost, each has one end, on which all readings agree, its result belongs to one run that
// its worker finished, and a task of mode at_most_once is never started twice. The short
// form has a tenth of the faults and tasks.
func TestOwnershipNeverForks(t *testing.T) {
	wanted, total := either(21, 210), either(2000, 20_000)
	f, seed := newFleet(t), rand.Uint64()
	t.Logf("seed %d", seed)
	trouble := newFaults(f, seed)
	submitters := []*submitter{newSubmitter(f.submitter()), newSubmitter(f.home())}
	reads := &readings{}
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for _, d := range submitters {
		clients.Go(func() { d.submit(ctx, total/len(submitters)) })
		clients.Go(func() { reads.take(ctx, d) })
	}
	for trouble.total() < wanted {
		trouble.next(t)
		pause(time.Second)
	}
	trouble.end()
	for _, d := range submitters {
		f.home().until("all tasks are submitted", func() bool { return d.count() >= total/len(submitters) })
	}
	ends := wait(t, submitters) // under many faults most tasks end only now, while the readings continue
	cancel()
	clients.Wait()
	t.Logf("counted: faults %v; tasks ended %v", trouble.count, ends.states())
	f.checkRuns(t, ends)
	reads.checkLinear(t, f, ends)
}

// A submitter is a node at which tasks are submitted.
type submitter struct {
	*machine
	atLeastOnce, atMostOnce *acknowledged
}

func newSubmitter(m *machine) *submitter { return &submitter{m, newAcknowledged(), newAcknowledged()} }

func (d *submitter) count() int { return d.atLeastOnce.count() + d.atMostOnce.count() }

// submit submits tasks until there are total: one in ten of mode at_most_once, one in a
// hundred takes a second.
func (d *submitter) submit(ctx context.Context, total int) {
	r := wire.Request{Target: "queue:build", Kind: "build"}
	once, slow := r, r
	once.Mode, slow.Kind = proto.AtMostOnce.Name(), "slow"
	for ctx.Err() == nil && d.count() < total {
		try, done := context.WithTimeout(ctx, 10*time.Second) // the node may be stopped or dead
		d.atLeastOnce.submit(try, d.machine, 89, r)
		d.atLeastOnce.submit(try, d.machine, 1, slow)
		d.atMostOnce.submit(try, d.machine, 10, once)
		done()
		pause(time.Second)
	}
}
