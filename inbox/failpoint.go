package inbox

// The physical steps of a task here, for Config.Fail. At a point before a commit
// an error leaves the step undone; after it, the step is on disk and nobody is
// told. In a test build the process dies there instead.
const (
	PointAccept   = "inbox/accept"   // before the task is written
	PointAccepted = "inbox/accepted" // it is on disk, the ack has not left
	PointStart    = "inbox/start"    // before the start is written
	PointStarted  = "inbox/started"  // it is on disk, the handler has not been called
	PointFinish   = "inbox/finish"   // the handler has returned, nothing of it is written
	PointFinished = "inbox/finished" // the end and the result are on disk
	PointSettle   = "inbox/settle"   // before a mark is written
	PointSettled  = "inbox/settled"  // the mark is on disk, what it covers is still there
)
