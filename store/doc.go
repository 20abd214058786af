// Package store keeps bytes on disk in atomic, durable batches, for any number
// of writers at once. What Apply answered with nil is on the disk; a batch is
// there whole or not at all, and only if what it requires held.
//
//	Apply ─┐                        ┌── one group ──┐
//	Apply ─┼─▶ queue ─▶ committer ─▶│ check, commit │─▶ fsync ─▶ After ─▶ nil
//	Apply ─┘      ▲                 └───────────────┘
//	              └── what queues while one fsync runs is the next group
//
// One goroutine, the committer, writes. It never waits for a group to fill:
// alone, a batch pays one fsync; among many it shares one, with up to 512
// operations or 1 MiB. Requirements
// ([Batch.RequireAbsent], [Batch.RequireEqual]) are checked by the committer
// against the disk and the batches before it in the group, which makes
// insert-once and compare-and-set hold on every engine. Nobody is told
// anything, not even that a requirement failed, before the fsync of the group.
//
// Below the front stands an [Engine]: store/nuts, store/pebble or store/mem.
// The front adds what they lack or do wrongly: group commit, an expiry of its
// own (eight bytes before each value), limits, a reserve of free disk space
// below which only new work is refused, and a full stop after the first commit
// that failed: the store must then be closed and opened again.
package store
