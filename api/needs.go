package api

import (
	"context"
	"io"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/node"
)

// A Node is what the window shows: [node.Node], or a fake in tests.
type Node interface {
	tasking
	meshing
	keeping
}

var _ Node = (*node.Node)(nil)

type tasking interface {
	submitting
	reading
	proving
}

type meshing interface {
	ending
	neighbours
	gate
}

type keeping interface {
	handling
	storing
	watching
}

type submitting interface {
	Submit(ctx context.Context, r node.Request) (node.Submitted, error)
	SubmitMany(ctx context.Context, rs []node.Request) ([]node.Submitted, []error)
	Retry(ctx context.Context, id string) (node.Submitted, error)
}

type reading interface {
	Task(ctx context.Context, id string) (node.Task, error)
	Tasks(ctx context.Context, q node.Query) (node.Page[node.Task], error)
	// Wait returns when the task has ended, or the task as it is with ctx's error.
	Wait(ctx context.Context, id string) (node.Task, error)
}

type proving interface {
	Result(ctx context.Context, id string) (io.ReadCloser, node.Task, error)
	Receipts(ctx context.Context, id string) ([]node.Receipt, error)
	Why(ctx context.Context, subject string) (node.Blocker, error)
}

type ending interface {
	Cancel(ctx context.Context, id string, hard bool, reason string) (node.Task, error)
	Purge(ctx context.Context, q node.Query, dryRun bool) (node.Purged, error)
	DeadLetters(ctx context.Context, q node.Query) (node.Page[node.Task], error)
}

type neighbours interface {
	Peers(ctx context.Context) []node.Peer
	Peer(ctx context.Context, name string) (node.Peer, error)
	Invite(ctx context.Context, o node.InviteOptions) (node.Invitation, error)
}

type gate interface {
	Block(ctx context.Context, name string) error
	Unblock(ctx context.Context, name string) error
	Forget(ctx context.Context, name string) error
}

type handling interface {
	Handlers() []node.Handler
	AddHandler(ctx context.Context, s node.HandlerSpec) error
	RemoveHandler(ctx context.Context, kind string) error
}

type storing interface {
	StoreStats() node.StoreStats
	Compact(ctx context.Context) error
	// Snapshot writes a copy that opens as a store into dir, which must not exist.
	Snapshot(ctx context.Context, dir string) error
}

type watching interface {
	health
	Status(ctx context.Context) node.Status
	Registry() *prometheus.Registry
}

type health interface {
	Healthy() error
	Ready() error
}
