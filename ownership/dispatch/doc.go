// Package dispatch chooses which node gets the next task of a queue. It only chooses: the
// candidates are filtered first, and a lease makes the choice effective.
//
//	members ─▶ alive, not draining, serves the kind, has the labels,
//	           below every limit, a slot free or soon free
//	        ─▶ preferred labels ─▶ a slot free, if any has one ─▶ Strategy
//
// A node without a handler for the kind is never chosen, whatever the strategy. The package
// is pure: the same calls in the same order return the same results.
package dispatch
