// Package backlog keeps tasks on disk in the order in which they should be
// processed. It is the engine of outbox and inbox: they decide what a
// change means, it makes the change durable and keeps the schedule.
//
//	            ┌───────────── live bucket ─────────────┐
//	Add ──────▶ │ behind ─▶ waiting ─▶ ready ─▶ taken   │ ──▶ done    kept a day
//	            │ (lane)    (due)      (class)  parked  │ ──▶ dead    kept for a person,
//	            └──────▲───────────────────┬────────────┘            then archived
//	                   └── Change, Release ┘
//
// On disk an entry has an initial record, written once, and after its first change
// a state, which overrides the record in the initial one. Nothing else is stored:
// the schedule is in memory and is a function of the records alone, so that [Open]
// rebuilds it exactly. Memory changes only after the fsync.
//
// Within a group (a peer, a kind) the classes share what is taken: critical
// first but never more than nine tenths while others wait, then high, normal and
// low as 8 : 3 : 1, and one low at least in a hundred. Entries of one lane (an
// ordering key) are taken one at a time: the next waits until the first has ended.
// A paused group costs nothing until it is resumed.
package backlog
