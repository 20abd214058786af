package queue

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Titles are the names of mailboxes and topics of the mesh, agent:NAME and topic:NAME. Each
// has a home, proved by deeds as that of a queue.
type Titles struct{ *Queues }

// A Title is what is known about the home of a name.
type Title struct {
	Name       string // with its prefix
	Home       proto.PeerID
	Generation uint64 // rises when the home changes
	Removed    bool   // its home gave it up; nobody else can make it
}

func titleOf(s *proto.QueueState) Title {
	t := Title{Name: s.GetName(), Generation: s.GetGeneration(), Removed: s.GetRemoved()}
	copy(t.Home[:], s.GetHome())
	return t
}

// HomeOf returns the home of a name, and since which generation it is that.
func (ts Titles) HomeOf(name string) (home proto.PeerID, generation uint64, err error) {
	s := ts.Driver.Titles()[name]
	if s == nil {
		kind, _ := proto.TitleKindOf(name)
		if err := checkTitle(name, kind); err != nil {
			return home, 0, err
		}
		return home, 0, fmt.Errorf("%w: %.128s is not known here: create it on the node that should be its home; other nodes learn of it when they connect to that node", wire.ErrNotFound, name)
	}
	t := titleOf(s)
	if t.Removed {
		return home, 0, fmt.Errorf("%w: %s was removed on %s, which can create it again", wire.ErrNotFound, name, ts.parts.Book.NameOf(t.Home))
	}
	return t.Home, t.Generation, nil
}

// Title makes this node the home of a name of a kind, unless it is that already. An admin
// signs that, as for a queue.
func (ts Titles) Title(ctx context.Context, name string, kind proto.TitleKind) error {
	if err := checkTitle(name, kind); err != nil {
		return err
	}
	var deed *proto.Signed
	switch s := ts.Driver.Titles()[name]; {
	case s == nil:
		var err error
		if deed, err = ts.queueDeed(ctx, name); err != nil {
			return err
		}
	case !ts.Here(s):
		return fmt.Errorf("%w: the home of %s is %s", wire.ErrRefused, name, ts.parts.Book.NameOf(titleOf(s).Home))
	case !s.GetRemoved():
		return nil
	}
	return ts.set(ctx, "title.set", name, deed, false)
}

// Seize makes this node, an admin, the home of a name whose home, from, is permanently lost. The
// mail that only that node has is not here.
func (ts Titles) Seize(ctx context.Context, name, from string) error {
	s := ts.Driver.Titles()[name]
	if s == nil {
		_, _, err := ts.HomeOf(name)
		return err
	}
	return ts.seize(ctx, "title.seize", s, from)
}

// HandOff makes another node the home of a name whose home is this one. What the name stands for
// has to be there.
func (ts Titles) HandOff(ctx context.Context, name string, to proto.PeerID) error {
	ts.moving.Lock()
	defer ts.moving.Unlock()
	home, _, err := ts.HomeOf(name)
	switch {
	case err != nil:
		return err
	case home != ts.self:
		return fmt.Errorf("%w: the home of %s is %s: hand it over there", wire.ErrRefused, name, ts.parts.Book.NameOf(home))
	}
	if err := ts.MayTake(ctx, name, to); err != nil {
		return err
	}
	return ts.handOff(ctx, ts.cfg.AuditSystem, name, to)
}

// MayTake returns why a node cannot become the home of a name now.
func (ts Titles) MayTake(ctx context.Context, name string, to proto.PeerID) error {
	switch {
	case to == ts.self:
		return fmt.Errorf("%w: this node is already the home of %s", wire.ErrRefused, name)
	case !ts.net.Connected(to):
		return fmt.Errorf("%w: %s is not connected", wire.ErrRefused, ts.parts.Book.NameOf(to))
	case !ts.mayWork(to):
		return fmt.Errorf("%w: the home of %s needs the role work, which %s does not have", wire.ErrRefused, name, ts.parts.Book.NameOf(to))
	}
	if err := ts.Driver.MayMove(ctx, name, to); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrRefused, err)
	}
	return nil
}

// Remove gives up a name whose home is this node. Everybody learns that it is gone. Only
// this node can create it again, with [Titles.Title].
func (ts Titles) Remove(ctx context.Context, name string) error {
	home, _, err := ts.HomeOf(name)
	if err == nil && home != ts.self {
		err = fmt.Errorf("%w: the home of %s is %s: remove it there", wire.ErrRefused, name, ts.parts.Book.NameOf(home))
	}
	if err != nil {
		return err
	}
	return ts.set(ctx, "title.remove", name, nil, true)
}

func (ts Titles) set(ctx context.Context, action, name string, deed *proto.Signed, removed bool) error {
	err := ts.Driver.CreateQueue(ctx, name, deed, func(s *proto.QueueState) { s.Removed = removed })
	if errors.Is(err, ownership.ErrNameTaken) || errors.Is(err, ownership.ErrElsewhere) {
		err = fmt.Errorf("%w: %w", wire.ErrRefused, err)
	}
	if err != nil {
		return err
	}
	return ts.cfg.Audit(ctx, action, name)
}

// checkTitle checks a name of a kind.
func checkTitle(name string, kind proto.TitleKind) error {
	is, _ := proto.TitleKindOf(name)
	if !validTitle(name) || kind != is || kind == proto.TitleQueue {
		return fmt.Errorf("%w: %.128q: use agent:NAME for a mailbox and topic:NAME for a topic, with a NAME of 1-63 of a-z 0-9 . _ -", wire.ErrInvalid, name)
	}
	return nil
}

// validTitle reports whether a member may have the name created: that of a queue, a mailbox
// or a topic.
func validTitle(name string) bool {
	kind, valid := proto.TitleKindOf(name)
	return valid && kind != proto.TitleGroup
}

// checkMovable refuses to move the home of a name that is not a queue's as that of a queue.
func checkMovable(name string) error {
	if !proto.NamesQueue(name) {
		return fmt.Errorf("%w: %.128s is not a queue: its home is handed over with mailbox handoff or topic handoff, and seized with mailbox set or topic set", wire.ErrRefused, name)
	}
	return nil
}

// Watch lets f be called with each name whose home becomes known or changes, or that is
// removed or created again, once that is on disk. f must not block, and replaces the one
// before. [Titles.HomeOf] has what is known already.
func (ts Titles) Watch(f func(Title)) { ts.titles.watcher.Store(&f) }

// A titleWatch tells the watcher of the titles what changes.
type titleWatch struct {
	watcher atomic.Pointer[func(Title)]
	last    map[string]Title // used by the goroutine of the driver only
}

func (w *titleWatch) changed(t Title) {
	if w.last[t.Name] == t {
		return // only the deeds have changed
	}
	w.last[t.Name] = t
	if f := w.watcher.Load(); f != nil {
		(*f)(t)
	}
}

// stateChanged is called with a queue, or another name with a home, that has changed.
func (qs *Queues) stateChanged(name string) {
	qs.announce(name)
	if s := qs.Driver.Titles()[name]; s != nil {
		qs.titles.changed(titleOf(s))
	}
}
