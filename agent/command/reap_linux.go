package command

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Reap stops the processes that runs of the node left behind when it was killed:
// all that have its name as BALEFIRE_NODE. It returns how many it found, once
// they have exited. Call it on start, before anything runs (S35). runAs are the
// users that handlers run as besides the node's own: see [Config].
func Reap(ctx context.Context, node string, grace time.Duration, runAs ...string) (found int, err error) {
	if node == "" {
		return 0, errors.New("reap: the node has no name by which its processes could be found")
	}
	found, err = reap(ctx, node, grace)
	for _, name := range runAs {
		a, err2 := accountOf(name)
		if err2 == nil {
			err2 = a.runAs(func() error {
				n, err := reap(ctx, node, grace)
				found += n
				return err
			})
		}
		err = errors.Join(err, err2)
	}
	return found, err
}

func reap(ctx context.Context, node string, grace time.Duration) (int, error) {
	entry := []byte("BALEFIRE_NODE=" + node)
	seen := map[int]uint64{} // start times: an exiting process no longer has an environment
	has := func(pid int) bool {
		born, known := seen[pid]
		if !known && !hasEnv(pid, entry) { // first: this rules out most
			return false
		}
		s, ok := readStat(pid)
		if !ok || s.dead || known && born != s.startTime || isAncestor(pid) {
			return false
		}
		seen[pid] = s.startTime
		return true
	}
	list := processes(has)
	found := len(list)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	gentle := time.NewTimer(grace)
	defer gentle.Stop()
	sig := syscall.SIGTERM
	for first := true; len(list) > 0; list = processes(has) {
		if first || sig == syscall.SIGKILL {
			for _, pid := range list {
				signalIf(pid, sig, has)
			}
		}
		first = false
		select {
		case <-ctx.Done():
			return found, fmt.Errorf("reap: %d processes of an earlier start are still there: %w", len(list), ctx.Err())
		case <-gentle.C:
			sig = syscall.SIGKILL
		case <-tick.C:
		}
	}
	return found, nil
}

// isAncestor reports whether pid is an ancestor of this process, for example when
// a task starts a node of its own.
func isAncestor(pid int) bool {
	for up := syscall.Getppid(); up > 1; {
		if up == pid {
			return true
		}
		s, ok := readStat(up)
		if !ok {
			return false
		}
		up = s.parent
	}
	return false
}
