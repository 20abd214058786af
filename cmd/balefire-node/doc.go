// Command balefire-node is the door: the daemon of a machine and the command
// line that people and scripts use, in one binary.
//
//	balefire-node run            the node itself: node and api, until a signal
//	balefire-node send PEER KIND every other word talks to it over its socket
//
// It promises what a script needs: data on standard output and nothing else,
// an exit code that tells what happened (exit.go), the same formats for every
// command that reads (render.go), and errors that say what failed, why, and
// what to do. One file holds one command.
package main
