//go:build linux

// Command gate runs what a change must pass before it counts, and the long forms of
// the same tests.
//
//	gate            the steps of the gate, once, with a table of their times
//	gate soak       the long forms: what has not passed since its packages changed
//	gate repeat     the steps and tests that start processes or open sockets, 100 times each,
//	                half of them with two busy loops
//	gate whole      the whole gate four times, two of them with two busy loops
//
// A step passes when its command ends well and every test that it names has passed:
// a test that was renamed, filtered out or skipped fails its step. No step is tried
// again. What judges a time, a rate or a statistic of real processes is a step of
// soak; such a step runs until two of at most three runs agree.
//
// Soak, repeat and whole write one line for each run to dist/soak.txt and
// dist/gate.txt and continue where they were interrupted, also in another clone if these files
// are committed. No failed run is forgotten: repeat and whole fail again on the same commit,
// and on a later one repeat counts from 0. Soak writes one line, too, for a step that it does
// not run because an earlier run stands: with the commit of both.
package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

// logs is the folder for the output of steps.
const logs = "dist/gate"

func command(ctx context.Context, args []string) error {
	verb := "run"
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		verb, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("gate "+verb, flag.ExitOnError)
	only := flags.String("only", "", "run only the steps with these names, comma-separated")
	times := flags.Int("n", 0, "number of runs: default 100 for repeat, 4 for whole")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q: see go doc ./internal/gate", flags.Arg(0))
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	switch verb {
	case "run":
		return runGate(ctx, *only)
	case "soak":
		return soak(ctx, *only)
	case "repeat":
		return repeat(ctx, *only, cmp.Or(max(*times, 0), 100))
	case "whole":
		return runWhole(ctx, cmp.Or(max(*times, 0), 4))
	case "busy":
		for ctx.Err() == nil { // runs a busy loop until the process is killed
		}
		return nil
	}
	return fmt.Errorf("unknown command %q: run, soak, repeat or whole", verb)
}

// wide is how many steps run in parallel: those of real processes mostly wait.
const wide = 3

// runAll runs the steps, wide at a time, and passes each result to done. A step that
// prepares the others runs before them and alone.
func runAll(ctx context.Context, steps []step, done func(r result, output string)) {
	var mu sync.Mutex
	one := func(s step) {
		var output bytes.Buffer
		r := s.run(ctx, &output)
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			done(r, output.String())
		}
	}
	var group errgroup.Group
	group.SetLimit(wide)
	for _, s := range steps {
		if s.prepares {
			one(s)
			continue
		}
		group.Go(func() error { one(s); return nil })
	}
	_ = group.Wait() // none returns an error
}

// runGate runs each step once; a failure does not stop the others.
func runGate(ctx context.Context, only string) error {
	began := time.Now()
	all, err := choose(gateSteps, only)
	if err != nil {
		return err
	}
	var results []result
	runAll(ctx, all, func(r result, output string) {
		fmt.Print(output)
		results = append(results, r)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	failed := 0
	for _, r := range results {
		if r.err != nil {
			failed++
			fmt.Printf("\nFAIL %s: %v\n", r.step.name, r.err)
		}
	}
	fmt.Printf("\n%-22s %8s %8s  %s\n", "step", "seconds", "cpu", "verdict")
	var cpu time.Duration
	for _, r := range results {
		cpu += r.cpu
		fmt.Printf("%-22s %8.0f %8.0f  %s\n", r.step.name, r.took.Seconds(), r.cpu.Seconds(), r.verdict())
	}
	fmt.Printf("%-22s %8.0f %8.0f\n", "together", time.Since(began).Seconds(), cpu.Seconds())
	if failed > 0 {
		return fmt.Errorf("%d of %d steps failed; their output is in %s", failed, len(all), logs)
	}
	return nil
}
