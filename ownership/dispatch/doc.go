// Package dispatch chooses which node gets the next task of a queue. It only
// chooses: who may be chosen is filtered first, and a lease makes the choice count.
//
//	members ─▶ alive, not draining, serves the kind, has the labels,
//	           below every limit, a slot free ─▶ preferred labels ─▶ Strategy
//
// A node without a handler for the kind is never chosen, whatever the strategy.
// All of it is pure: the same questions in the same order get the same answers.
package dispatch
