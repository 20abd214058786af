// Package idempotency remembers idempotency keys for a while that no wall clock can
// cut short: a key that is forgotten early lets an effect happen twice.
//
//	age  ──0──────run──────7d──▶        stands still while the node is stopped
//	           ▲ a key is made, with the age of this moment
//	           └──────── For ────────▶ from here on a sweep may forget it
//
// What has passed is read off the age: the boot time during which the node ran,
// summed up over its starts and kept on disk. The wall clock has no part in it,
// neither while the node runs nor over a stop, because nobody can tell a machine
// that was off for a year from one whose clock was set forward by a year. So a
// key is kept for the time it should be, or for longer on a machine that is often
// off, and never for less. After a kill the age goes on from where it was last
// written, at most five minutes back.
//
// Longer must not mean without end: there is a limit to the number of keys, and
// who wants to make one more is refused until the sweep has made room. Nothing is
// forgotten to make room.
package idempotency
