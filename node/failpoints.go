package node

import "github.com/balefire/balefire/redrive"

// The failpoints on the path of a task at which Config.Fail is called, in addition to
// those of the inbox and the mailboxes. A test build exits there: every commit has one
// before and one after it.
const (
	PointSealed   = "submit/sealed" // the tasks are not on disk
	PointStored   = "submit/stored" // the tasks are on disk, the caller has no answer yet
	PointRedriven = redrive.PointRedriven
	PointMoving   = redrive.PointMoving
	PointReceive  = "receive"       // a group of frames has arrived and is not on disk
	PointAccepted = "accepted"      // the accepted ones are on disk, the ack is not sent
	PointResult   = "result/sealed" // a task has ended, its end and its result are not on disk
)
