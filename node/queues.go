package node

import (
	"context"
	"path/filepath"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/wire"
)

// openQueues opens the shared queues.
func (n *Node) openQueues() (err error) {
	n.Queues, err = queue.Open(queue.Parts{
		Store: n.storage.Store, Keys: n.keys, Mesh: n.mesh, Sealer: n.sealer, Book: n.book, Members: inboxMembers{n.book}, Outbox: n.outbox, Inbox: n.inbox,
		Tasks: queueTasks{n}, Bodies: n.transfers, Grants: n.transfers, Checks: n.frames.Checks, Self: n.member, Stopping: n.draining.Load,
		Root: func() (*identity.Root, error) { return identity.LoadRoot(filepath.Join(n.cfg.Dir, datadir.Identity)) },
	}, queue.Config{
		MadeBy: n.cfg.Queues.MadeBy, MaxNames: n.cfg.Queues.MaxNames, MaxInbox: n.cfg.Limits.MaxInbox, StallAfter: n.cfg.Limits.StallAfter, Started: n.started,
		Audit:       n.Audit.Record,
		AuditSystem: n.Audit.RecordSystem,
		Event:       n.Events.Add, Leaving: func(ctx context.Context) (int, error) { return n.Schedules.Leaving(ctx) },
		Fail: n.cfg.Fail, Clock: n.cfg.Clock, Logger: n.log, Registerer: n.registry,
	})
	if err == nil {
		n.inbox.Keep(inbox.KeeperQueue, n.Queues)
		n.inbox.Connect(n.Queues)
		n.transfers.Open(n.inbox, n.outbox, n.Queues.Driver, n.Queues, n.frames)
	}
	return err
}

// member returns this node as a member that may be granted tasks.
func (n *Node) member() dispatch.Member {
	load := n.load()
	return dispatch.Member{
		Peer: n.keys.Peer(), Alive: n.running.Load(), Draining: n.phase() != proto.NodeRunning, Kinds: n.kinds(), Labels: n.cfg.Mesh.Labels,
		Slots: int(load.Slots), Busy: int(load.Busy), Load: load.CpuPermille, Priority: uint32(n.cfg.Mesh.Priority),
	}
}

// queueTasks finds tasks for the queues.
type queueTasks struct{ node *Node }

// Find finds a task by its id or the beginning of it.
func (t queueTasks) Find(ctx context.Context, ref string) (proto.TaskID, string, *proto.Record, error) {
	return t.node.Views.Find(ctx, ref)
}

// Task returns a task for display.
func (t queueTasks) Task(ctx context.Context, ref string) (wire.Task, error) {
	return t.node.Views.Task(ctx, ref)
}

// FinishMoves completes the moves of tasks to other queues.
func (t queueTasks) FinishMoves(ctx context.Context) { t.node.Redriver.FinishMoves(ctx) }
