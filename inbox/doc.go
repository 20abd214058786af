// Package inbox takes custody of arriving tasks and runs each so that its effect happens
// once.
//
//	Accept ─▶ known? refused? ─▶ one commit ─▶ ACCEPTED ─▶ the ack may leave
//	                                              │
//	     Settle ─▶ forget what is finished        ▼ most urgent first, a slot free
//	       ▲                                   RUNNING
//	       │                                      │
//	  finished id kept ◀── one commit with ───────┼──▶ RETRYING ─▶ RUNNING …
//	  until it is settled  the RESULT entry       ▼
//	                                      SUCCESS FAILED TIMEOUT DEAD_LETTER
//	                                      CANCELLED EXPIRED
//
// An envelope is accepted at most once per store, under any clock: its id is kept while the
// task is here and, once finished, until its origin states that it will never send it again
// (the settled mark). If that is not a member any more, the mark is raised here once the
// not_after of its finished ids has passed. When there is no room for another id the answer
// is BUSY; nothing is forgotten to make room.
//
// A start is on disk before the handler gets the task, unless the handler may be repeated:
// then the start is written soon after, or with the end. The end of a task is in one batch
// with its result. What a start without an end means after a crash is the handler's declared
// policy: retry, probe or park.
package inbox
