package node

import (
	"github.com/balefire/balefire/schedule"
)

// openSchedules loads the schedules of the queues whose home is this node.
func (n *Node) openSchedules() (err error) {
	n.Schedules, err = schedule.Open(schedule.Parts{
		Store: n.storage.Store, Queues: n.Queues, Tasks: n.submitter, Post: n.Queues.Post, Audit: n.Audit.Record, Name: n.book.NameOf,
		Event: n.Events.Add,
	}, schedule.Config{Self: n.keys.Peer(), Clock: n.cfg.Clock, Logger: n.log, Registerer: n.registry})
	return err
}
