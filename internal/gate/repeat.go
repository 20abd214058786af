//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

const loops = 2 // busy loops next to every other run

// repeat runs each step of the gate that starts processes or opens sockets the given number
// of times, in rounds of all of them, and states after each how long the others will take.
func repeat(ctx context.Context, only string, times int) error {
	commit, done, err := prepared()
	if err != nil {
		return err
	}
	chosen, err := choose(gateSteps, only)
	if err != nil {
		return err
	}
	var steps []step
	for _, s := range chosen {
		if s.prepares {
			if r := s.run(ctx, os.Stdout); r.err != nil {
				return r.err
			}
		}
		if s.again == nil {
			continue
		}
		again, err := s.again(s)
		if err != nil {
			return err
		}
		again.name += " again"
		steps = append(steps, again)
	}
	return rounds(ctx, steps, times, done, commit)
}

// rounds runs the rounds that are not in the ledger yet, and fails if any run on the commit
// has failed, also one of an earlier call. Runs on earlier commits count from the last
// failure on: the steps and not the product are on trial.
func rounds(ctx context.Context, steps []step, times int, done *ledger, commit string) error {
	var took [2]time.Duration // the last round without and with busy loops
	for n := range times {
		var due []step
		for _, s := range steps {
			if len(inSuccession(done.of(s.name), commit)) <= n {
				due = append(due, s)
			}
		}
		if len(due) == 0 {
			continue
		}
		began := time.Now()
		err := withLoad(n%2 == 1, func(what string) (err error) {
			runAll(ctx, due, func(r result, _ string) {
				if fmt.Printf("%s %d of %d, beside %s: %.0f s, %s\n", r.step.name, n+1, times, what, r.took.Seconds(), r.verdict()); r.err != nil {
					keepLog(r.step, n)
				}
				_, added := done.add(r, commit, what)
				err = errors.Join(err, added)
			})
			return errors.Join(err, ctx.Err())
		})
		if err != nil {
			return err
		}
		took[n%2] = time.Since(began)
		fmt.Printf("round %d of %d took %s: about %s for the others\n", n+1, times, took[n%2].Round(time.Second), remaining(took, n+1, times).Round(time.Minute))
	}
	return done.judge(steps, commit)
}

// inSuccession returns the runs after the last failure on another commit.
func inSuccession(runs []line, commit string) []line {
	for i, r := range slices.Backward(runs) {
		if r.verdict != "pass" && r.commit != commit {
			return runs[i+1:]
		}
	}
	return runs
}

// remaining estimates how long the rounds from next on take, from the last ones without and
// with busy loops; while there is none of one kind, from the other.
func remaining(took [2]time.Duration, next, times int) (d time.Duration) {
	for n := next; n < times; n++ {
		d += cmp.Or(took[n%2], took[1-n%2])
	}
	return d
}

// keepLog keeps the output of a failed run.
func keepLog(s step, n int) {
	path := s.log()
	if err := os.Rename(path, fmt.Sprintf("%s.%d", path, n+1)); err != nil {
		fmt.Println(err)
	}
}

// runWhole runs the whole gate several times on one commit.
func runWhole(ctx context.Context, times int) error {
	commit, done, err := prepared()
	if err != nil {
		return err
	}
	gate := step{name: "the whole gate", argv: sh(".ci/run"), env: []string{goflags() + " -count=1"}} // a cached test runs too
	return inARow(ctx, gate, times, done, commit)
}

// inARow runs the step until the ledger has that many runs on the commit, stops after one
// that failed, and fails if any of them has failed, also one of an earlier call.
func inARow(ctx context.Context, s step, times int, done *ledger, commit string) error {
	for n := len(runsOn(done.of(s.name), commit)); n < times; n++ {
		err := withLoad(n%2 == 1, func(what string) error {
			r := s.run(ctx, os.Stdout)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			_, err := done.add(r, commit, what)
			return errors.Join(err, r.err)
		})
		if err != nil {
			return err
		}
	}
	return done.judge([]step{s}, commit)
}

func prepared() (commit string, done *ledger, err error) {
	if commit, err = head(); err == nil {
		done, err = openLedger("dist/gate.txt")
	}
	return commit, done, err
}

// withLoad calls f, with or without busy loops in the background.
func withLoad(loaded bool, f func(what string) error) error {
	if !loaded {
		return f("nothing")
	}
	stop, err := busy(loops)
	if err != nil {
		return err
	}
	defer stop()
	return f(fmt.Sprintf("%d busy loops", loops))
}
