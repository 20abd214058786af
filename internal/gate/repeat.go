//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

const loops = 2 // busy loops next to every other run

// repeat runs each step of the gate that starts processes or opens sockets the given number
// of times, in rounds of all of them.
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
		for _, again := range s.again {
			one := s
			if one.name = s.name + " again"; again != "" {
				one.argv = sh(again)
			}
			steps = append(steps, one)
		}
	}
	var failed int
	for n := range times {
		var due []step
		for _, s := range steps {
			if len(runsOn(done.of(s.name), commit)) <= n {
				due = append(due, s)
			}
		}
		err := withLoad(n%2 == 1, func(what string) (err error) {
			runAll(ctx, due, func(r result, _ string) {
				if fmt.Printf("%s %d of %d, beside %s: %.0f s, %s\n", r.step.name, n+1, times, what, r.took.Seconds(), r.verdict()); r.err != nil {
					failed++
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
	}
	if failed > 0 {
		return fmt.Errorf("%d runs failed: see dist/gate.txt", failed)
	}
	return nil
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
	const name = "the whole gate"
	for n := len(runsOn(done.of(name), commit)); n < times; n++ {
		err := withLoad(n%2 == 1, func(what string) error {
			again := step{name: name, argv: sh(".ci/run"), env: []string{goflags() + " -count=1"}} // a cached test runs too
			r := again.run(ctx, os.Stdout)
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
	return nil
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
