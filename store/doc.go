// Package store keeps bytes on disk in atomic, durable batches, for any number
// of writers at once. Once Apply returns nil the batch is on the disk. A
// batch is written whole or not at all, and only if its requirements hold.
//
//	Apply ─┐                        ┌── one group ──┐
//	Apply ─┼─▶ queue ─▶ committer ─▶│ check, commit │─▶ fsync ─▶ After ─▶ nil
//	Apply ─┘      ▲                 └───────────────┘
//	              └── batches queued during an fsync are the next group
//
// One goroutine, the committer, writes. It never waits for a group to fill:
// alone, a batch pays one fsync; among many it shares one, with up to 512
// operations or 1 MiB. Requirements
// ([Batch.RequireAbsent], [Batch.RequireEqual]) are checked by the committer
// against the disk and the batches before it in the group, which makes
// insert-once and compare-and-set work on every engine. No caller gets an
// answer, not even a failed requirement, before the fsync of the group.
//
// The front uses an [Engine]: store/nuts, store/pebble or store/mem.
// The front adds what they lack or get wrong: group commit, an expiry of its
// own (eight bytes before each value), limits, a reserve of free disk space
// below which only new work is refused, and a halt after the first failed
// commit: the store must then be closed and opened again.
package store
