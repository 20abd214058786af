package node

// The steps of a task's walk at which Config.Fail is asked, beside those of the
// inbox. A test build dies there instead: every commit has one before and one
// after it.
const (
	PointSealed   = "submit/sealed"  // nothing of the tasks is on disk
	PointStored   = "submit/stored"  // they are on disk, the submitter has not been told
	PointRedriven = "redrive/stored" // a task was made anew, the old one does not say so
	PointMoving   = "move/cancelled" // a task was cancelled to go to another queue, nobody waits for its end
	PointReceive  = "receive"        // a group of frames has arrived, nothing of it is on disk
	PointAccepted = "accepted"       // what was accepted of it is on disk, the ack has not left
	PointResult   = "result/sealed"  // a task has ended, neither its end nor its result is on disk
)
