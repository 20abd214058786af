package apitest

import (
	"context"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/executor"
	"github.com/balefire/balefire/wire"
)

// Peers returns one peer.
func (n *Node) Peers(context.Context) []wire.Peer {
	_ = n.called("Peers") // it cannot fail
	if n.Known != nil {
		return n.Known
	}
	return []wire.Peer{peer("laptop")}
}

func peer(name string) wire.Peer {
	return wire.Peer{Name: name, ID: "12D3KooW", State: "OFFLINE", Roles: []string{"work"}}
}

// Peer returns a peer.
func (n *Node) Peer(_ context.Context, name string) (wire.Peer, error) {
	return peer(name), n.called("Peer %s", name)
}

// Invite creates a ticket.
func (n *Node) Invite(_ context.Context, o wire.InviteOptions) (wire.Invitation, error) {
	err := n.called("Invite %q %s %s", o.Name, o.TTL, strings.Join(o.Roles, "+"))
	return wire.Invitation{Ticket: "BALE1X", Expires: Start, Roles: []string{"work"}}, err
}

// Block blocks a peer.
func (n *Node) Block(_ context.Context, name string) error { return n.called("Block %s", name) }

// Unblock unblocks a peer.
func (n *Node) Unblock(_ context.Context, name string) error { return n.called("Unblock %s", name) }

// Forget forgets a peer.
func (n *Node) Forget(_ context.Context, name string) error { return n.called("Forget %s", name) }

// Handlers returns none.
func (n *Node) Handlers() []wire.Handler {
	_ = n.called("Handlers") // it cannot fail
	return nil
}

// AddHandler checks a handler as a node does.
func (n *Node) AddHandler(_ context.Context, s wire.HandlerSpec) error {
	if err := executor.Validate(s); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return n.called("AddHandler %s %s", s.Kind, strings.Join(s.Exec, "+"))
}

// RemoveHandler removes a handler.
func (n *Node) RemoveHandler(_ context.Context, kind string) error {
	return n.called("RemoveHandler %s", kind)
}

// Status returns the status of a node.
func (n *Node) Status(context.Context) wire.Status {
	_ = n.called("Status") // it cannot fail
	return wire.Status{Name: "here", ID: "12D3KooW", Mesh: "ab", Version: "dev", Started: Start, Store: n.StoreStats(), Outbox: map[string]int{"PENDING": 3}}
}

// StoreStats returns the statistics of a store.
func (n *Node) StoreStats() wire.StoreStats {
	return wire.StoreStats{Engine: datadir.EngineNuts, Schema: 1, Keys: 9}
}

// StartCommand records nothing.
func (n *Node) StartCommand(ctx context.Context, _, _ string) (context.Context, func(string) error, error) {
	return ctx, func(string) error { return nil }, nil
}

// Compact compacts nothing.
func (n *Node) Compact(context.Context) error { return n.called("Compact") }

// Snapshot copies nothing.
func (n *Node) Snapshot(_ context.Context, dir, _ string) error { return n.called("Snapshot %s", dir) }

// Healthy returns Err.
func (n *Node) Healthy() error { return n.called("Healthy") }

// Ready returns Err.
func (n *Node) Ready() error { return n.called("Ready") }

// Registry is empty until an API server is created.
func (n *Node) Registry() *prometheus.Registry { return n.registry }
