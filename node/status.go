package node

import (
	"cmp"
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
	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/wire"
)

// Handlers lists the handlers of this node by kind.
func (n *Node) Handlers() []wire.Handler {
	out := n.registered()
	for i, h := range out { // reads the disk, so outside the lock
		if absent := n.unknownAllowed(h.Allow); absent != "" {
			out[i].Warning = strings.TrimPrefix(h.Warning+"; "+absent, "; ")
		}
		if len(h.Exec) > 0 {
			if err := command.Find(h.Exec[0]); err != nil {
				out[i].Problem = err.Error()
			}
		}
	}
	return out
}

// unknownAllowed lists the names and roles of an allow list that no member has now: they
// may be mistyped, or belong to a member that has yet to join.
func (n *Node) unknownAllowed(allow []string) string {
	var unknown []string
	for _, a := range allow {
		what, who, _ := strings.Cut(a, ":")
		switch {
		case what == "peer" && who != n.self.Name && who != n.keys.Peer().String():
			if _, err := n.book.Find(who); err != nil && !errors.Is(err, addressbook.ErrAmbiguous) {
				unknown = append(unknown, "no member is named "+who)
			}
		case what == "role" && !n.book.RoleKnown(who):
			unknown = append(unknown, "no member has the role "+who)
		}
	}
	return strings.Join(unknown, "; ")
}

// registered is Handlers without a check of their programs.
func (n *Node) registered() []wire.Handler {
	n.handlers.Lock()
	defer n.handlers.Unlock()
	kinds := map[string]inbox.KindStatus{}
	for _, k := range n.inbox.Status().Kinds {
		kinds[k.Kind] = k
	}
	out := []wire.Handler{}
	for _, s := range n.inbox.Specs() {
		spec := n.handlers.specs[s.Kind]
		out = append(out, wire.Handler{
			Kind: s.Kind, Type: cmp.Or(spec.Type, wire.TypeCommand), Exec: spec.Exec, Allow: s.Allow, Profile: string(s.Profile),
			Timeout: max(s.Timeout, 0).String(), Concurrency: s.Concurrency, MaxAttempts: s.MaxAttempts, OnCrash: string(s.OnCrash), Warning: command.Warn(spec.Exec, spec.Args, spec.AllowFlags),
			Running: kinds[s.Kind].Running, Waiting: kinds[s.Kind].Waiting,
		})
	}
	return out
}

// Compact returns the space of deleted records to the disk now.
func (n *Node) Compact(ctx context.Context) error { return n.storage.Store.Compact(ctx) }

// Snapshot writes a consistent copy of the store to dir, which must not exist. With
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
		return n.audit(ctx, "store.snapshot", dir+" for "+toKey)
	}
	err := n.storage.Store.Snapshot(dir)
	if e, ok := errors.AsType[*fs.PathError](err); ok && (strings.HasPrefix(e.Path, dir) || strings.HasPrefix(dir, e.Path)) && !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: the node cannot write to %s: %w: name a folder whose parent exists and belongs to the node's user", wire.ErrRefused, filepath.Dir(dir), e)
	}
	if err != nil {
		return err
	}
	return n.audit(ctx, "store.snapshot", dir)
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
