// Package schedule creates tasks for shared queues at the times of their schedules. Each
// due time has one task in the whole mesh: a schedule is kept at the home of its queue
// alone, and moves with it.
//
//	cron text, time zone ─▶ Plan ─▶ Due(after, now) ─▶ times that need a task
//	tick ─▶ due ─▶ stored as firing ─▶ submitted with a key ─▶ stored as fired
//	home moved ─▶ stored as going ─▶ SCHEDULE until answered ─▶ stored as gone
//
// The idempotency key of a task is derived from schedule and due time, so a task that is
// submitted again after a crash is the same one.
//
// A fixed hour follows the wall clock: times in an hour that is skipped come directly after
// the gap, and times in an hour that is repeated come only the first time. Where the hour
// is *, times follow elapsed time.
package schedule
