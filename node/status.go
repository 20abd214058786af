package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/wire"
)

// unknownAllowed lists the names and roles of an allow list that no member has now: they
// may be mistyped, or belong to a member that has yet to join.
func (n *Node) unknownAllowed(allow []string) (unknown []wire.Note) {
	for _, a := range allow {
		what, who, _ := strings.Cut(a, ":")
		switch {
		case what == "peer" && who != n.self.Name && who != n.keys.Peer().String():
			if _, err := n.book.Find(who); err != nil && !errors.Is(err, addressbook.ErrAmbiguous) {
				unknown = append(unknown, wire.Note{Code: wire.NoteMemberAbsent, NoteArgs: wire.NoteArgs{Peer: who}})
			}
		case what == "role" && !n.book.RoleKnown(who):
			unknown = append(unknown, wire.Note{Code: wire.NoteRoleUnused, NoteArgs: wire.NoteArgs{Detail: who}})
		}
	}
	return unknown
}

// Compact returns the space of deleted records to the disk now.
func (n *Node) Compact(ctx context.Context) error { return n.storage.Store.Compact(ctx) }

// Snapshot writes a consistent copy of the store and of the ledger to dir, which must not exist. With
// toKey, a public key of [NewSnapshotKey], it writes one file that only the private key
// can open.
func (n *Node) Snapshot(ctx context.Context, dir, toKey string) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("%w: %s already exists: name a folder that does not", wire.ErrRefused, dir)
	}
	if toKey != "" {
		if err := n.storage.SealedSnapshot(ctx, dir, toKey); err != nil {
			return err
		}
		return n.Audit.Record(ctx, "store.snapshot", dir+" for "+toKey)
	}
	err := n.storage.Snapshot(dir)
	if e, ok := errors.AsType[*fs.PathError](err); ok && (strings.HasPrefix(e.Path, dir) || strings.HasPrefix(dir, e.Path)) && !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: the node cannot write to %s: %w: name a folder whose parent exists and belongs to the node's user", wire.ErrRefused, filepath.Dir(dir), e.Err)
	}
	if err != nil {
		return err
	}
	return n.Audit.Record(ctx, "store.snapshot", dir)
}

// Healthy returns the reason why this node should be restarted, or nil if it is running
// and its latest commit succeeded.
func (n *Node) Healthy() error {
	if err := n.storage.Store.Err(); err != nil {
		return err
	}
	if !n.running.Load() {
		return errors.New("the node is not running")
	}
	return nil
}

// Ready returns the reason why this node accepts no new work, or nil.
func (n *Node) Ready() error {
	switch {
	case n.draining.Load():
		return wire.ErrDraining
	case n.storage.Store.Full():
		return fmt.Errorf("%w: %w", wire.ErrFull, n.storage.Store.Refuses())
	}
	return n.Healthy()
}

// Registry returns the node's metrics.
func (n *Node) Registry() *prometheus.Registry { return n.registry }

// Addrs returns the multiaddrs of this node, the best first.
func (n *Node) Addrs() []string { return n.net.Addrs() }

// Name returns this node's name in its mesh.
func (n *Node) Name() string { return n.self.Name }
