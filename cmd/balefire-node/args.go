package main

import (
	"fmt"
	"regexp"

	"github.com/spf13/cobra"
)

// exactly returns a check that there are n arguments. what describes them in the error.
func exactly(n int, what string) cobra.PositionalArgs { return between(n, n, what) }

// between is like exactly for a range; most < 0 means no upper limit.
func between(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		return usage("%s takes %s", cmd.CommandPath(), what)
	}
}

var taskRE = regexp.MustCompile(`^[0-9A-Fa-f-]{1,36}$`)

// oneTask checks for one task: a whole id or the beginning of one.
func oneTask(cmd *cobra.Command, args []string) error { return taskIDs(1, 1)(cmd, args) }

// taskIDs checks for several tasks.
func taskIDs(least, most int) cobra.PositionalArgs {
	what := "the id of a task, or its beginning"
	switch {
	case most > 1:
		what = fmt.Sprintf("the ids of at most %d tasks", most)
	case most < 0:
		what = "the ids of tasks"
	}
	count := between(least, most, what)
	return func(cmd *cobra.Command, args []string) error {
		for _, a := range args {
			if !taskRE.MatchString(a) {
				return usage("%.60q is not a task id: use an id from task ls, or the beginning of one", a)
			}
		}
		return count(cmd, args)
	}
}
