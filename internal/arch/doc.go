// Package arch is a test that holds the house together: which floor a package
// stands on, who owns which library, how large things may grow. It has no code
// of its own.
//
//	floor 5   cmd/balefire-node                                     the door
//	floor 4   api                                                   the window
//	floor 3   node                                                  the hall
//	floor 2   transport outbox inbox gossip ownership agent workflow
//	floor 1   store   identity
//	floor 0   proto   clock
package arch
