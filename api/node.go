package api

import (
	"context"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/node"
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
	Schedules(ctx context.Context) ([]node.Schedule, error)
	AddSchedule(ctx context.Context, s node.ScheduleSpec) (node.Schedule, error)
	scheduleEditor
}

type scheduleEditor interface {
	RemoveSchedule(ctx context.Context, queue, name string) error
	PauseSchedule(ctx context.Context, queue, name string, on bool) (node.Schedule, error)
}

// taskEditor changes tasks in progress.
type taskEditor interface {
	SetClass(ctx context.Context, id, class string) (node.Task, error)
	MoveTask(ctx context.Context, id, queue string) (node.Submitted, error)
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
	handlerRegistry
	storeOps
	monitor
}

type submitter interface {
	Submit(ctx context.Context, r node.Request) (node.Submitted, error)
	SubmitMany(ctx context.Context, rs []node.Request) ([]node.Submitted, []error)
	Retry(ctx context.Context, id string) (node.Submitted, error)
}

type taskReader interface {
	Task(ctx context.Context, id string) (node.Task, error)
	Tasks(ctx context.Context, q node.Query) (node.Page[node.Task], error)
	// Wait returns when the task has ended, or the current task with ctx's error.
	Wait(ctx context.Context, id string) (node.Task, error)
}

type resultReader interface {
	Result(ctx context.Context, id string) (io.ReadCloser, node.Task, error)
	Receipts(ctx context.Context, id string) ([]node.Receipt, error)
	Why(ctx context.Context, subject string) (node.Blocker, error)
}

type taskEnder interface {
	Cancel(ctx context.Context, id string, hard bool, reason string) (node.Task, error)
	Purge(ctx context.Context, q node.Query, dryRun bool) (node.Purged, error)
	DeadLetters(ctx context.Context, q node.Query) (node.Page[node.Task], error)
}

type peerReader interface {
	Peers(ctx context.Context) []node.Peer
	Peer(ctx context.Context, name string) (node.Peer, error)
	Invite(ctx context.Context, o node.InviteOptions) (node.Invitation, error)
}

type peerBlocker interface {
	Block(ctx context.Context, name string) error
	Unblock(ctx context.Context, name string) error
	Forget(ctx context.Context, name string) error
}

type memberReader interface {
	Members(ctx context.Context) []node.Member
	Member(ctx context.Context, ref string) (node.Member, error)
	MeshSummary(ctx context.Context) node.MeshSummary
}

type memberMaintenance interface {
	PruneMembers(ctx context.Context, age time.Duration, limit int, dryRun bool) (node.Pruned, error)
	Converge(ctx context.Context) (node.Convergence, error)
}

type connectivity interface {
	Ping(ctx context.Context, ref string) (node.Pong, error)
	Path(ctx context.Context, ref string) (node.PathReport, error)
	NetCheck(ctx context.Context) node.NetCheck
}

type joinRequests interface {
	JoinRequests(ctx context.Context) []node.JoinRequest
	// Accept takes an id, its beginning or end, a requested name or a code.
	Accept(ctx context.Context, ref string, o node.AcceptOptions) (node.Peer, error)
}

type memberAdmin interface {
	Rename(ctx context.Context, ref, name string) error
	Revoke(ctx context.Context, ref, reason string) error
}

type eventReader interface {
	// Events waits for the first event after the number if there is none yet.
	Events(ctx context.Context, after uint64, limit int, wait time.Duration) node.EventPage
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
	Queues(ctx context.Context) []node.Queue
	Queue(ctx context.Context, name string) (node.Queue, error)
	SetQueue(ctx context.Context, name string, s node.QueueSettings) (node.Queue, error)
}

type queueMover interface {
	SeizeQueue(ctx context.Context, name, from string) (node.Queue, error)
	HandOffQueue(ctx context.Context, name, to string) (node.Queue, error)
	drainer
}

type drainer interface {
	Drain(ctx context.Context, on bool) (node.Drained, error)
	// Stop returns once the node has begun to stop.
	Stop(ctx context.Context, handoff bool) error
}

type ownership interface {
	leaseReader
	timeline
	// UnblockLane unblocks the tasks of one ordering key.
	UnblockLane(ctx context.Context, queue, key string) (node.Queue, error)
}

type leaseReader interface {
	Leases(ctx context.Context, f node.LeaseFilter) ([]node.Lease, error)
	leaseReclaimer
	LeaseConflicts(ctx context.Context) []node.LeaseConflict
}

type leaseReclaimer interface {
	ReleaseLease(ctx context.Context, task string) (node.Lease, error)
	RecoverLeases(ctx context.Context, owner string, dryRun bool) (node.Recovered, error)
}

type timeline interface {
	OwnershipEvents(ctx context.Context, after uint64, limit int) []node.OwnershipEvent
	// Timeline also asks the other nodes.
	Timeline(ctx context.Context, q node.TimelineQuery) (node.Timeline, error)
}

type handlerRegistry interface {
	Handlers() []node.Handler
	AddHandler(ctx context.Context, s node.HandlerSpec) error
	RemoveHandler(ctx context.Context, kind string) error
}

type storeOps interface {
	StoreStats() node.StoreStats
	Compact(ctx context.Context) error
	// Snapshot writes a copy that can be opened as a store to dir, which must not exist;
	// with a key it is a file that only the private key can decrypt.
	Snapshot(ctx context.Context, dir, toKey string) error
}

type monitor interface {
	health
	Status(ctx context.Context) node.Status
	Registry() *prometheus.Registry
}

type health interface {
	Healthy() error
	Ready() error
}
