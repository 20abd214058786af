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

// A command is one command of netlab.
type command struct {
	name, args, help string
	run              func(args []string) error
}

func commands() []command {
	return []command{
		{"router", "", "run as a router between the networks NETLAB_WAN and NETLAB_LAN until stopped", router},
		{"nat", "cone|symmetric", "change the kind of NAT; the router drops all connections", nat},
		{"cut", "[ADDRESS...]", "drop all packets from or to the addresses; without arguments: all packets", cut},
		{"loss", "PART", "drop a fraction of the packets in each direction, 0 to 1", loss},
		{"heal", "", "end cut and loss", heal},
		{"forget", "", "drop all connections, as after a restart", forget},
		{"health", "", "report by exit code whether the router works", health},
		{"node", "NAME [found]", "run as a node: create a mesh, or join with the ticket /tickets/NAME", node},
		{"invite", "NAME[=admin]...", "create tickets for nodes that have not joined", invite},
		{"mark", "", "handler: write a line with the id of its task", mark},
		{"sleep", "DURATION", "handler: copy standard input to standard output after a delay", sleep},
		{"marks", "", "print the lines of the handler, one for each run, with the id of its task", marks},
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
