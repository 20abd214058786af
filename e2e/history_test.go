//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/balefire/balefire/proto"
)

// An ending is how a task ended at its origin.
type ending struct {
	state, cause, said string
	once               bool
}

type endings map[string]ending

// states counts the endings by state.
func (e endings) states() map[string]int {
	n := map[string]int{}
	for _, end := range e {
		n[end.state]++
	}
	return n
}

// wait waits for the end of every task acknowledged at the submitters (I1), as long as tasks
// keep ending (I20).
func wait(t *testing.T, submitters []*submitter) endings {
	t.Helper()
	all := endings{}
	for _, d := range submitters {
		open := map[string]bool{} // whether the task may be started only once
		for _, id := range d.atLeastOnce.all() {
			open[id] = false
		}
		for _, id := range d.atMostOnce.all() {
			open[id] = true
		}
		for last := time.Now(); len(open) > 0; pause(time.Second) {
			for id, once := range open {
				state, cause, said, err := d.outcome(context.Background(), id)
				if err != nil {
					t.Fatalf("I1: %s was acknowledged: %v", id, err)
				}
				if state != "" {
					all[id] = ending{state, cause, said, once}
					delete(open, id)
					last = time.Now()
				} else if time.Since(last) > testTimeout {
					t.Fatalf("I20: %d tasks of %s do not end: %s", len(open), d.name, d.must("why", id))
				}
			}
		}
	}
	return all
}

// checkRuns checks the endings against the notes of the workers. A result belongs to a run
// that its worker finished, and to the newest lease under which a run was started: older
// ones were fenced (I4, I5). Mode at_most_once allows one start.
func (f *fleet) checkRuns(t *testing.T, ends endings) {
	t.Helper()
	type run struct{ task, said string }
	finished, newest, starts := map[run]bool{}, map[string]string{}, map[string]int{}
	for _, w := range f.workers() {
		for _, m := range w.readMarks() {
			if m.what == "E" {
				finished[run{m.task, fmt.Sprintf("%s %s %s %s", w.name, m.task, m.attempt, m.life)}] = true
				continue
			}
			starts[m.task]++
			if before(newest[m.task], m.attempt) {
				newest[m.task] = m.attempt
			}
		}
	}
	uncertain := []string{proto.TaskAbandonedOnce.Name(), proto.TaskOwnerLostOnce.Name(), proto.TaskHomeRestoredOnce.Name(), proto.TaskStoppedOnce.Name(), proto.TaskForgottenOnce.Name()}
	again := 0
	for id, end := range ends {
		if starts[id] > 1 {
			again++
		}
		switch {
		case end.once && starts[id] > 1:
			t.Errorf("I6: %s may be started only once but was started %d times", id, starts[id])
		case end.state == "SUCCESS":
			if !finished[run{id, end.said}] {
				t.Errorf("I4: the result of %s is %q, but no worker finished that run", id, end.said)
			} else if epoch := strings.Fields(end.said)[2]; before(epoch, newest[id]) {
				t.Errorf("I5: the result of %s belongs to lease %s, but the newest start was under %s", id, epoch, newest[id])
			}
		case !end.once || !slices.Contains(uncertain, end.cause):
			t.Errorf("%s ended %s: %s", id, end.state, end.cause)
		}
	}
	t.Logf("%d tasks, %d of them started more than once", len(ends), again)
}

// before compares two epochs, boot.counter.
func before(a, b string) bool {
	var x, y [2]uint64
	fmt.Sscanf(a, "%d.%d", &x[0], &x[1])
	fmt.Sscanf(b, "%d.%d", &y[0], &y[1])
	return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1])) < 0
}

// Readings are the states read at the origins of tasks while faults were injected.
type readings struct {
	mu  sync.Mutex
	ops []porcupine.Operation
}

// A look is one read of a task; a finish is a run that may have set its state.
type (
	look   struct{ task string }
	finish struct{ task, end string }
)

// take reads random tasks of a submitter until ctx is done.
func (r *readings) take(ctx context.Context, d *submitter) {
	began := time.Now()
	for ctx.Err() == nil {
		ids := append(d.atLeastOnce.all(), d.atMostOnce.all()...)
		for range min(100, len(ids)) {
			id := ids[rand.IntN(len(ids))]
			call := time.Since(began)
			try, done := context.WithTimeout(ctx, 2*time.Second)
			state, _, said, err := d.outcome(try, id)
			done()
			if err != nil {
				continue // the node is dead or stopped
			}
			r.mu.Lock()
			r.ops = append(r.ops, porcupine.Operation{Input: look{id}, Call: int64(call), Output: state + " " + said, Return: int64(time.Since(began))})
			r.mu.Unlock()
		}
		pause(100 * time.Millisecond)
	}
}

// checkLinear checks that the readings of each task are linearizable as one register that is
// empty at first and set once, to the end of one of its runs.
func (r *readings) checkLinear(t *testing.T, f *fleet, ends endings) {
	t.Helper()
	read := map[string][]porcupine.Operation{}
	ended := 0
	for _, op := range r.ops {
		id := op.Input.(look).task
		read[id] = append(read[id], op)
		if op.Output != " " {
			ended++
		}
	}
	if ended < 10_000 || len(r.ops)-ended < 10_000 {
		t.Errorf("of %d readings only %d are of ended tasks: they prove little", len(r.ops), ended)
	}
	could := map[string][]string{}
	for _, w := range f.workers() {
		for _, m := range w.readMarks() {
			if m.what == "E" {
				could[m.task] = append(could[m.task], fmt.Sprintf("SUCCESS %s %s %s %s", w.name, m.task, m.attempt, m.life))
			}
		}
	}
	for id, ops := range read {
		for _, end := range append(could[id], "DEAD_LETTER ") {
			ops = append(ops, porcupine.Operation{ClientId: 1, Input: finish{id, end}, Return: math.MaxInt64})
		}
		last := ends[id]
		ops = append(ops, porcupine.Operation{ClientId: 2, Input: look{id}, Call: math.MaxInt64 - 1, Output: last.state + " " + last.said, Return: math.MaxInt64})
		for i := range ops {
			ops[i].ClientId = i
		}
		if !porcupine.CheckOperations(setOnce.ToModel(), ops) {
			t.Errorf("I3: the readings of %s do not agree: %v", id, ops)
		}
	}
	t.Logf("%d readings of %d tasks are linearizable", len(r.ops), len(read))
}

// setOnce is a register that the first writer sets and no other changes.
var setOnce = porcupine.NondeterministicModel{
	Init: func() []any { return []any{" "} },
	Step: func(state, input, output any) []any {
		switch in := input.(type) {
		case finish:
			if state == " " {
				return []any{state, in.end} // it was refused, or set the register
			}
		case look:
			if state != output {
				return nil
			}
		}
		return []any{state}
	},
	Equal: func(a, b any) bool { return a == b },
}
