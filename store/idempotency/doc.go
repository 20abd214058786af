// Package idempotency keeps idempotency keys for a period that no wall clock can
// cut short: a key that is forgotten early lets an effect happen twice.
//
//	age  ──0──────run──────7d──▶        stands still while the node is stopped
//	           ▲ a key is made, with the age of this moment
//	           └──────── For ────────▶ from here on a sweep may forget it
//
// Elapsed time is measured by the age: the boot time during which the node ran,
// summed over its starts and stored on disk. The wall clock is not used, neither
// while the node runs nor across a stop, because a machine that was off for a year
// cannot be told from one whose clock was set forward by a year. So a key is kept
// for its period, or longer on a machine that is often off, but never for less.
// After a kill the age continues from where it was last written, at most five
// minutes back.
//
// Longer must not mean without bound: the number of keys is limited, and further
// keys are refused until the sweep has made room. No key is forgotten early to make
// room.
package idempotency
