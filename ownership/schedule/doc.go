// Package schedule computes when a schedule is due. The caller creates the tasks, one for
// each time.
//
//	cron text, time zone ─▶ Plan ─▶ Due(after, now) ─▶ times that need a task
//
// A fixed hour follows the wall clock: times in an hour that is skipped come directly after
// the gap, and times in an hour that is repeated come only the first time. Where the hour
// is *, times follow elapsed time.
package schedule
