// Package outbox keeps a task durable here until another node has it durable there,
// and is the home of the tasks created here: it alone ends them.
//
//	Submit ─▶ sign the group, one commit ─▶ receipt "stored"
//	             │
//	          PENDING ────peer sender────▶ SENT ──ack──▶ ACCEPTED ─▶ RUNNING
//	             ▲                           │ refusal       │           │
//	             └──── backoff, or ──────────┘               └──Commit───┘
//	             never sent, not_after past ─▶ EXPIRED              │
//	                                          SUCCESS, FAILED, …  ◀ the commit rule
//
// A group is what was queued while the previous one was written: one signature and
// one fsync for all of it. The disk sets the group size: see batcher.go. A task costs
// one operation when it is submitted, one when it is
// accepted, and none in between: SENT is kept only in memory, because sending
// again is safe. Being offline spends no attempt; it is bounded by the task's
// time to live.
//
// What a target must remember to take each task once is bounded by the settled
// mark ([Outbox.Mark]): everything up to it is accepted, refused or ended there
// and will never be sent again.
//
// The maker of a task may keep a record of its own about it, written in the batch that
// submits the task ([Outbox.Submit]) and in the batch that ends it ([Config.Ended]).
//
// Results of tasks that ran here for another home travel the same way, as
// entries that are deleted once the home has committed them.
package outbox
