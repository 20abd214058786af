//go:build linux

// Netlab makes a container into a part of a laboratory: a NAT router between two
// networks whose faults can be changed while it runs, or a node that pairs itself
// with the others at its first start. It stands alone in an image that holds
// nothing else but the node.
//
//	relay1 (founds the mesh) ◀── pair: a ticket for each ──▶ /tickets/a1 ──▶ a1: join, run
//	   │                                                                      │
//	public network ──── router-a: hide what is behind, cut, lose ──── private network
//
// `netlab help` lists its commands; docs/lab.md shows a mesh of them.
package main

import (
	"fmt"
	"os"
	"slices"
)

// A command is one thing that netlab does.
type command struct {
	name, args, help string
	run              func(args []string) error
}

func commands() []command {
	return []command{
		{"router", "", "be a router between the networks NETLAB_WAN and NETLAB_LAN, until told to stop", router},
		{"nat", "cone|symmetric", "change how the router hides what is behind it; it forgets all connections", nat},
		{"cut", "[ADDRESS...]", "pass nothing that comes from or goes to the addresses; without any: nothing at all", cut},
		{"loss", "PART", "lose a part of what passes in each direction, 0 to 1", loss},
		{"heal", "", "end cut and loss", heal},
		{"forget", "", "forget all connections, as a router that was restarted", forget},
		{"health", "", "tell by the exit code whether the router works", health},
		{"node", "NAME [found]", "be a node: found a mesh, or join with the ticket /tickets/NAME; then run", node},
		{"invite", "NAME[=admin]...", "make tickets for nodes that have not joined, and end", invite},
		{"mark", "", "be a handler: note the task that it is run for", mark},
		{"sleep", "DURATION", "be a handler: copy standard input to standard output after a while", sleep},
		{"marks", "", "print what was noted: a line for each run, with the id of its task", marks},
	}
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "netlab:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	all := commands()
	if len(args) > 0 {
		if i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] }); i >= 0 {
			return all[i].run(args[1:])
		}
	}
	for _, c := range all {
		fmt.Printf("netlab %s %s\n\t%s\n", c.name, c.args, c.help)
	}
	if len(args) == 0 || args[0] != "help" {
		return fmt.Errorf("which command? %q", args)
	}
	return nil
}
