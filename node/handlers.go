package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/wire"
)

// AddHandler registers a handler and keeps it across restarts. It replaces a handler
// of the same kind.
func (n *Node) AddHandler(ctx context.Context, s wire.HandlerSpec) error {
	spec, err := n.spec(s)
	if err == nil {
		err = n.mayRunAs(s)
	}
	if err != nil {
		return err
	}
	n.handlers.Lock()
	defer n.handlers.Unlock()
	added := append(without(n.handlers.added, s.Kind), s)
	if err := saveHandlers(n.cfg.Dir, added); err != nil {
		return err
	}
	if err := n.inbox.Register(spec); err != nil {
		return errors.Join(fmt.Errorf("%w: %s", wire.ErrInvalid, strings.TrimPrefix(err.Error(), inbox.ErrSpec.Error()+": ")), saveHandlers(n.cfg.Dir, n.handlers.added))
	}
	n.handlers.added = added
	n.handlers.specs[s.Kind] = s
	n.inbox.Suspend(s.Kind, programProblem(s))
	n.announceHandlers()
	n.announceKinds()
	return n.audit(ctx, "handler.add", s.Kind)
}

// RemoveHandler removes a handler. Its waiting tasks stay until there is a handler for
// them again or they expire.
func (n *Node) RemoveHandler(ctx context.Context, kind string) error {
	n.handlers.Lock()
	defer n.handlers.Unlock()
	if _, ok := n.handlers.specs[kind]; !ok {
		return fmt.Errorf("%w: this node has no handler %.40q", wire.ErrNotFound, kind)
	}
	left := without(n.handlers.added, kind)
	if len(left) == len(n.handlers.added) {
		return fmt.Errorf("%w: handler %s is in the configuration file: remove it there", wire.ErrInvalid, kind)
	}
	if err := saveHandlers(n.cfg.Dir, left); err != nil {
		return err
	}
	n.handlers.added = left
	n.inbox.Unregister(kind)
	delete(n.handlers.specs, kind)
	n.announceKinds()
	return n.audit(ctx, "handler.remove", kind)
}

// announceKinds tells the members at once which kinds this node handles.
func (n *Node) announceKinds() {
	if n.running.Load() {
		n.gossip.Describe()
	}
}

func without(specs []wire.HandlerSpec, kind string) []wire.HandlerSpec {
	var out []wire.HandlerSpec
	for _, s := range specs {
		if s.Kind != kind {
			out = append(out, s)
		}
	}
	return out
}
