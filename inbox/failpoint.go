package inbox

// Points in the steps of a task, for Config.Fail. An error at a point before a commit
// leaves the step undone; after it, the step is on disk and has not been reported. In a
// test build the process exits there instead.
const (
	PointAccept   = "inbox/accept"   // before the task is written
	PointAccepted = "inbox/accepted" // it is on disk, the ack has not been sent
	PointStart    = "inbox/start"    // before the start is written
	PointStarted  = "inbox/started"  // it is on disk or, of a repeatable handler, soon; the handler has not been called
	PointFinish   = "inbox/finish"   // the handler has returned, nothing of it is written
	PointFinished = "inbox/finished" // the end and the result are on disk
	PointSettle   = "inbox/settle"   // before a mark is written
	PointSettled  = "inbox/settled"  // the mark is on disk, what it covers is still there
)
