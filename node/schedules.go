package node

import (
	"context"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/redrive"
	"github.com/balefire/balefire/schedule"
	"github.com/balefire/balefire/wire"
)

// openSchedules loads the schedules of the queues whose home is this node.
func (n *Node) openSchedules() (err error) {
	n.Schedules, err = schedule.Open(schedule.Parts{
		Store: n.storage.Store, Queues: n.Queues, Tasks: scheduleTasks{n}, Post: n.Queues.Post, Audit: n.audit, Name: n.book.NameOf,
		Event: func(kind string, p proto.PeerID, text string) { n.addEvent(kind, p, text, nil) },
	}, schedule.Config{Self: n.keys.Peer(), Clock: n.cfg.Clock, Logger: n.log, Registerer: n.registry})
	return err
}

// scheduleTasks creates the tasks of schedules.
type scheduleTasks struct{ node *Node }

func (t scheduleTasks) CheckRequest(r *wire.Request) error {
	_, _, err := t.node.checkRequest(r)
	return err
}

func (t scheduleTasks) SubmitFor(ctx context.Context, r wire.Request, delegates [][]byte) (wire.Submitted, error) {
	return t.node.submit(ctx, &redrive.Request{Request: r, Delegates: delegates})
}
