// Package ownership decides which node may run a task of a queue, so that however
// the network breaks one result counts and no stale owner ever writes one.
//
//	        home of the queue                         owner
//	Add ─▶ PENDING ── grant(epoch) on disk ─GRANT──▶ RECEIVED on disk
//	          ▲  ▲         ACCEPTED  ◀──GRANTED───────  │
//	          │  │  at_most_once: RUNNING ◀─START─────  │
//	          │  │           on disk ──PERMIT────────▶ STARTED on disk ─▶ handler
//	          │  └── lease over, owner DEAD ◀─RENEW──── │   while it lives
//	          └── RETRYING ◀──────────RELEASE────────── │   failed, stopped, crashed
//	        SUCCESS … ◀────────────────ENDED─────────── FINISHED on disk, sent until answered
//	          │
//	          └─ handoff: MOVED on disk ─HANDOFF──▶ another home, next generation
//
// The home of a queue keeps the only authoritative state of each task, which makes it
// linearizable. A result counts only if the state is here, the task has not ended, and
// epoch, owner, token and boot id are those of its newest grant (the commit rule). Gossip
// suggests which nodes could work; it decides nothing.
//
// A handler that may be repeated starts at once the first time; its start is written with
// what comes next, often its end. A node that dies meanwhile counts the lease as abandoned,
// and the next start of the task is durable first.
//
// [Home] and [Owner] are pure state machines: an input is a message, a time or a request,
// and the [Output] lists what to write in one batch, and what to send or start once that
// batch and all before it are durable. They use no clock, disk, network, goroutine or lock;
// the [Driver] feeds them one input at a time. When a write fails they must be discarded
// and rebuilt from disk.
//
// A [Home] has parts that own their state and know nothing of the home: titles (which node is
// the home of a name), members (nodes that could work), epochs, transit (tasks that went to
// other homes) and endedTasks. What they ask for goes into the output of the present input.
package ownership
