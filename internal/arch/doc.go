// Package arch has tests of the structure of the code: the layers of packages, the owners
// of libraries, limits of size, who may hold the node or a context, who waits for a
// goroutine, and words that are no longer used. It has no code of its own.
//
//	layer 5   cmd/balefire-node                                     daemon and command line
//	layer 4   api                                                   API server
//	layer 3   node                                                  connects the subsystems
//	layer 2   transport outbox inbox gossip ownership agent mail workflow
//	layer 1   store   identity   settings
//	layer 0   proto   clock
package arch
