package node

import (
	"github.com/balefire/balefire/receive"
	"github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/submit/redrive"
)

// The failpoints on the path of a task at which Config.Fail is called, in addition to
// those of the inbox and the mailboxes. A test build exits there: every commit has one
// before and one after it.
const (
	PointSealed   = submit.PointSealed
	PointStored   = submit.PointStored
	PointRedriven = redrive.PointRedriven
	PointMoving   = redrive.PointMoving
	PointReceive  = receive.PointReceive
	PointAccepted = receive.PointAccepted
	PointResult   = submit.PointResult
)
