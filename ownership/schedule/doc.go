// Package schedule says when a schedule is due. It only reckons: who keeps a
// schedule makes its tasks, each time once.
//
//	cron text, time zone ─▶ Plan ─▶ Due(mark, now) ─▶ times to make tasks for
//
// A fixed hour goes by the clock on the wall: on the day on which an hour is left
// out its times come at once behind the gap, and on the day on which an hour comes
// twice they come in the first one alone. Where the hour is *, times go by the time
// that passes.
package schedule
