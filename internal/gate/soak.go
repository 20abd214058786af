//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// soak runs the long forms that have not passed since a product file that they cover was
// changed.
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
	var due []step
	var estimate time.Duration
	for _, s := range steps {
		switch counts, err := lastValid(s, done, commit); {
		case err != nil:
			return err
		case counts != nil:
			fmt.Printf("%-30s stands: %s; no product file that it covers has changed since\n", s.name, counts)
		default:
			due, estimate = append(due, s), estimate+max(s.estimate, 30*time.Second)
		}
	}
	fmt.Printf("%d of %d steps are due: about %s on two idle cores\n", len(due), len(steps), estimate.Round(time.Minute))
	failed := 0
	for _, s := range due {
		ok, err := decide(ctx, s, done, commit)
		if err != nil {
			return err
		}
		if !ok {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d steps failed: see dist/soak.txt, their output is in %s", failed, len(due), logs)
	}
	return nil
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
		r := s.run(ctx, os.Stdout)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err := done.add(r, commit, "nothing"); err != nil {
			return false, err
		}
		runs = append(runs, done.lines[len(done.lines)-1])
		if decided, ok := verdict(s, runs); decided {
			return ok, nil
		}
	}
}
