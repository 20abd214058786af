// Command balefire-node is the daemon and the command line, in one binary.
//
//	balefire-node run            the daemon: the node and its API, until a signal
//	balefire-node send PEER KIND most other commands talk to it over its socket
//
// It promises scripts: only data on standard output, an exit code for each kind of
// outcome (exit.go), the same output formats for every command that reads
// (render.go), and errors that state what failed, why, and what to do. Each command
// has its own file.
package main
