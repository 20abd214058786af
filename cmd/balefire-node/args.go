package main

import "github.com/spf13/cobra"

// exactly is a check of the number of arguments that says what they are.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return usage("%s takes %s", cmd.CommandPath(), what)
	}
}

// between is the same for a range; most < 0 means any number.
func between(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		return usage("%s takes %s", cmd.CommandPath(), what)
	}
}
