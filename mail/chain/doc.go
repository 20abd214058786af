// Package chain numbers the mail that one node sends to boxes on others, so that a box takes
// each mail once and in order, whatever is lost, repeated, reordered, interrupted by a crash
// or put back with an old copy of a disk (I22).
//
//	Origin: the spool                                      Home: the box
//	Add ─▶ number (boot, n) ─▶ stored ─ Next ──bundle──▶ prev known? ─▶ take or refuse,
//	                             │                            │         noted with the mail
//	        accepted, refused ◀──┴─ Answer ◀── up to n ───────┘ no: BUSY, go back
//
// A chain is what one origin sends to one box in one class. The origin gives each mail a
// number when it is written to the spool and keeps it there until the home has said what
// became of it; after a restart, every mail in the spool may have been sent. A mail is sent
// with the number of the mail before it in the spool. The home keeps, for each boot of each
// chain, the last number: a mail up to that was here before, a mail whose predecessor was
// here is next, and any other has to wait.
//
// There is a last number for each boot, not one for the chain: with one, mail is lost when
// an old copy of the origin's disk has come back twice, because the home has then seen
// higher boots than that of a mail which it has never seen.
//
// [Origin] and [Home] use no clock, disk, network, goroutine or lock: the same calls in the
// same order have the same results.
package chain
