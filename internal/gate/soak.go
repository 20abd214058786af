//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// soak runs the long forms that have not passed since a product file that they cover was
// changed: first those whose verdict does not depend on what else runs, some at a
// time, then the others one by one.
func soak(ctx context.Context, only string) error {
	commit, err := head()
	if err != nil {
		return err
	}
	done, err := openLedger("dist/soak.txt")
	if err != nil {
		return err
	}
	steps, err := choose(soakSteps, only)
	if err != nil {
		return err
	}
	return decideDue(ctx, steps, done, commit)
}

// decideDue decides the steps of which no earlier run stands.
func decideDue(ctx context.Context, steps []step, done *ledger, commit string) error {
	var together, alone []step
	var estimate time.Duration
	for _, s := range steps {
		took := max(s.estimate, 30*time.Second)
		switch earlier, err := lastValid(s, done, commit); {
		case err != nil:
			return err
		case earlier != nil:
			said, err := done.stand(*earlier, commit)
			if err != nil {
				return err
			}
			fmt.Println(said)
		case s.prepares:
			if ok, err := decide(ctx, s, done, commit); err != nil || !ok {
				return errors.Join(err, fmt.Errorf("the step %q failed: see %s", s.name, s.log()))
			}
		case s.timing || s.alone:
			alone, estimate = append(alone, s), estimate+took
		default:
			together, estimate = append(together, s), estimate+took/2
		}
	}
	fmt.Printf("%d of %d steps are due: about %s on two idle cores\n", len(together)+len(alone), len(steps), estimate.Round(time.Minute))
	failed := 0
	for _, group := range []struct {
		steps []step
		wide  int
	}{{together, wide}, {alone, 1}} {
		n, err := decideAll(ctx, group.steps, group.wide, done, commit)
		if err != nil {
			return err
		}
		failed += n
	}
	if failed > 0 {
		return fmt.Errorf("%d steps failed: see dist/soak.txt, their output is in %s", failed, logs)
	}
	return nil
}

// decideAll decides the steps, wide at a time, and returns how many failed.
func decideAll(ctx context.Context, steps []step, wide int, done *ledger, commit string) (int, error) {
	var failed atomic.Int64
	var group errgroup.Group
	group.SetLimit(wide)
	for _, s := range steps {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			ok, err := decide(ctx, s, done, commit)
			if err == nil && !ok {
				failed.Add(1)
			}
			return err
		})
	}
	err := group.Wait()
	return int(failed.Load()), err
}

// lastValid returns the last run of the step that is still valid, or nil.
func lastValid(s step, done *ledger, commit string) (*line, error) {
	if len(s.covers) == 0 {
		return nil, nil // it prepares the others
	}
	runs := done.of(s.name)
	if len(runs) == 0 {
		return nil, nil
	}
	last := runs[len(runs)-1]
	if decided, ok := verdict(s, runsOn(runs, last.commit)); !decided || !ok {
		return nil, nil
	}
	if differs, err := changed(s, last.commit, commit); differs || err != nil {
		return nil, err
	}
	return &last, nil
}

// runsOn returns the runs on one commit.
func runsOn(runs []line, commit string) (all []line) {
	for _, r := range runs {
		if r.commit == commit {
			all = append(all, r)
		}
	}
	return all
}

// verdict returns whether the runs are decisive for a step, and the verdict: that of the
// last run, or for a timing step the median of up to three runs.
func verdict(s step, runs []line) (decided, ok bool) {
	if len(runs) == 0 {
		return false, false
	}
	if !s.timing {
		return true, runs[len(runs)-1].verdict == "pass"
	}
	pass, fail := 0, 0
	for _, r := range runs[max(0, len(runs)-3):] {
		if r.verdict == "pass" {
			pass++
		} else {
			fail++
		}
	}
	return pass >= 2 || fail >= 2, pass >= 2
}

// decide runs the step until there is a verdict. Earlier runs on the same commit count.
func decide(ctx context.Context, s step, done *ledger, commit string) (bool, error) {
	runs := runsOn(done.of(s.name), commit)
	if decided, _ := verdict(s, runs); decided {
		runs = nil
	}
	for {
		fmt.Printf("== %s == %s, output in %s\n", s.name, time.Now().UTC().Format(time.TimeOnly), s.log())
		r := s.run(ctx, io.Discard)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if r.err != nil {
			keepLog(s, len(runs))
		}
		added, err := done.add(r, commit, "nothing")
		if err != nil {
			return false, err
		}
		fmt.Println(added)
		runs = append(runs, added)
		if decided, ok := verdict(s, runs); decided {
			return ok, nil
		}
	}
}
