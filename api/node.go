package api

import (
	"context"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/wire"
)

// A Node is what the server needs of a node: [node.Node], or a fake in tests.
type Node interface {
	taskOps
	meshOps
	nodeOps
}

var _ Node = (*node.Node)(nil)

type taskOps interface {
	submitter
	taskReader
	resultReader
}

type meshOps interface {
	taskEnder
	peerOps
	sharedOps
}

// sharedOps are the operations on the mesh and on shared queues.
type sharedOps interface {
	network
	queueOps
	taskEditor
}

// scheduler manages schedules.
type scheduler interface {
	Schedules(ctx context.Context) ([]wire.Schedule, error)
	AddSchedule(ctx context.Context, s wire.ScheduleSpec) (wire.Schedule, error)
	scheduleEditor
}

type scheduleEditor interface {
	RemoveSchedule(ctx context.Context, queue, name string) error
	PauseSchedule(ctx context.Context, queue, name string, on bool) (wire.Schedule, error)
}

// taskEditor changes tasks in progress.
type taskEditor interface {
	SetClass(ctx context.Context, id, class string) (wire.Task, error)
	MoveTask(ctx context.Context, id, queue string) (wire.Submitted, error)
	Progress(ctx context.Context, id string) error
}

type peerOps interface {
	peerReader
	peerBlocker
	joinRequests
}

// network is what every node knows about the mesh.
type network interface {
	membership
	connectivity
	eventReader
}

type membership interface {
	memberReader
	memberMaintenance
	memberAdmin
}

type nodeOps interface {
	management
	monitor
}

type management interface {
	handlerRegistry
	storeOps
	auditor
}

type auditor interface {
	StartCommand(ctx context.Context, action, subject string) (act context.Context, end func(result string) error, err error)
}

type submitter interface {
	Submit(ctx context.Context, r wire.Request) (wire.Submitted, error)
	SubmitMany(ctx context.Context, rs []wire.Request) ([]wire.Submitted, []error)
	Retry(ctx context.Context, id string) (wire.Submitted, error)
}

type taskReader interface {
	Task(ctx context.Context, id string) (wire.Task, error)
	Tasks(ctx context.Context, q wire.Query) (wire.Page[wire.Task], error)
	// Wait returns when the task has ended, or the current task with ctx's error.
	Wait(ctx context.Context, id string) (wire.Task, error)
}

type resultReader interface {
	Result(ctx context.Context, id string) (io.ReadCloser, wire.Task, error)
	Receipts(ctx context.Context, id string) ([]wire.Receipt, error)
	Why(ctx context.Context, subject string) (wire.Blocker, error)
}

type taskEnder interface {
	Cancel(ctx context.Context, id string, hard bool, reason string) (wire.Task, error)
	Purge(ctx context.Context, q wire.Query, dryRun bool) (wire.Purged, error)
	DeadLetters(ctx context.Context, q wire.Query) (wire.Page[wire.Task], error)
}

type peerReader interface {
	Peers(ctx context.Context) []wire.Peer
	Peer(ctx context.Context, name string) (wire.Peer, error)
	Invite(ctx context.Context, o wire.InviteOptions) (wire.Invitation, error)
}

type peerBlocker interface {
	Block(ctx context.Context, name string) error
	Unblock(ctx context.Context, name string) error
	Forget(ctx context.Context, name string) error
}

type memberReader interface {
	Members(ctx context.Context) []wire.Member
	Member(ctx context.Context, ref string) (wire.Member, error)
	MeshSummary(ctx context.Context) wire.MeshSummary
}

type memberMaintenance interface {
	PruneMembers(ctx context.Context, age time.Duration, limit int, dryRun bool) (wire.Pruned, error)
	Converge(ctx context.Context) (wire.Convergence, error)
}

type connectivity interface {
	Ping(ctx context.Context, ref string) (wire.Pong, error)
	Path(ctx context.Context, ref string) (wire.PathReport, error)
	NetCheck(ctx context.Context) wire.NetCheck
}

type joinRequests interface {
	JoinRequests(ctx context.Context) []wire.JoinRequest
	// Accept takes an id, its beginning or end, a requested name or a code.
	Accept(ctx context.Context, ref string, o wire.AcceptOptions) (wire.Peer, error)
}

type memberAdmin interface {
	Rename(ctx context.Context, ref, name string) error
	Revoke(ctx context.Context, ref, reason string) error
}

type eventReader interface {
	// Events waits for the first event after the number if there is none yet.
	Events(ctx context.Context, after uint64, limit int, wait time.Duration) wire.EventPage
}

// queueOps are the operations on shared queues.
type queueOps interface {
	queueEditor
	queueMover
	queueWork
}

// queueWork is ownership and schedules.
type queueWork interface {
	ownership
	scheduler
}

type queueEditor interface {
	Queues(ctx context.Context) []wire.Queue
	Queue(ctx context.Context, name string) (wire.Queue, error)
	SetQueue(ctx context.Context, name string, s wire.QueueSettings) (wire.Queue, error)
}

type queueMover interface {
	SeizeQueue(ctx context.Context, name, from string) (wire.Queue, error)
	HandOffQueue(ctx context.Context, name, to string) (wire.Queue, error)
	drainer
}

type drainer interface {
	Drain(ctx context.Context, on bool) (wire.Drained, error)
	// Stop returns once the node has begun to stop.
	Stop(ctx context.Context, handoff bool) error
}

type ownership interface {
	leaseReader
	timeline
	// UnblockLane unblocks the tasks of one ordering key.
	UnblockLane(ctx context.Context, queue, key string) (wire.Queue, error)
}

type leaseReader interface {
	Leases(ctx context.Context, f wire.LeaseFilter) ([]wire.Lease, error)
	leaseReclaimer
	LeaseConflicts(ctx context.Context) []wire.LeaseConflict
}

type leaseReclaimer interface {
	ReleaseLease(ctx context.Context, task string) (wire.Lease, error)
	RecoverLeases(ctx context.Context, owner string, dryRun bool) (wire.Recovered, error)
}

type timeline interface {
	OwnershipEvents(ctx context.Context, after uint64, limit int) []wire.OwnershipEvent
	// Timeline also asks the other nodes.
	Timeline(ctx context.Context, q wire.TimelineQuery) (wire.Timeline, error)
}

type handlerRegistry interface {
	Handlers() []wire.Handler
	AddHandler(ctx context.Context, s wire.HandlerSpec) error
	RemoveHandler(ctx context.Context, kind string) error
}

type storeOps interface {
	StoreStats() wire.StoreStats
	Compact(ctx context.Context) error
	// Snapshot writes a copy that can be opened as a store to dir, which must not exist;
	// with a key it is a file that only the private key can decrypt.
	Snapshot(ctx context.Context, dir, toKey string) error
}

type monitor interface {
	health
	Status(ctx context.Context) wire.Status
	Registry() *prometheus.Registry
}

type health interface {
	Healthy() error
	Ready() error
}
