package node

import (
	"context"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/schedule"
	"github.com/balefire/balefire/wire"
)

// openSchedules loads the schedules of the queues whose home is this node.
func (n *Node) openSchedules() (err error) {
	n.schedules, err = schedule.Open(schedule.Parts{
		Store: n.storage.Store, Queues: n.queues, Tasks: scheduleTasks{n}, Post: n.queues.Post, Audit: n.audit, Name: n.book.NameOf,
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
	return t.node.submit(ctx, &repeated{Request: r, delegates: delegates})
}

// Schedules lists the schedules kept on this node.
func (n *Node) Schedules(ctx context.Context) ([]wire.Schedule, error) { return n.schedules.List(ctx) }

// AddSchedule adds a schedule for a queue whose home is this node.
func (n *Node) AddSchedule(ctx context.Context, s wire.ScheduleSpec) (wire.Schedule, error) {
	return n.schedules.Add(ctx, s)
}

// RemoveSchedule removes a schedule.
func (n *Node) RemoveSchedule(ctx context.Context, queue, name string) error {
	return n.schedules.Remove(ctx, queue, name)
}

// PauseSchedule pauses a schedule, or with false resumes it.
func (n *Node) PauseSchedule(ctx context.Context, queue, name string, on bool) (wire.Schedule, error) {
	return n.schedules.Pause(ctx, queue, name, on)
}
