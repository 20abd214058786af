package view

import (
	"fmt"
	"slices"
	"strings"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/wire"
)

// Tasks lists the tasks that this node submitted and those that it accepted, the newest
// first.
func (v *Views) Tasks(q wire.Query) (wire.Page[wire.Task], error) {
	page := wire.Page[wire.Task]{Items: []wire.Task{}}
	p, err := v.position(q)
	if err != nil {
		return page, err
	}
	l := listing{span: p.home, limit: p.limit}
	if q.Role != wire.RoleOwner {
		found, next, err := v.Outbox.List(p.filter, p.home, p.limit)
		if err != nil {
			return page, err
		}
		for _, f := range found {
			l.add(f.ID, wire.RoleHome, f.Record)
		}
		l.until(next)
	}
	if q.Role != wire.RoleHome {
		match := v.matcher(p.filter)
		found, next, err := v.Inbox.List(p.owner, p.limit, func(id proto.TaskID, r *proto.Record) bool { return !inbox.MovedOn(r) && match(id, r) })
		if err != nil {
			return page, err
		}
		for _, f := range found {
			l.add(f.Key.ID, wire.RoleOwner, f.Record)
		}
		l.until(next)
	}
	lines, next := l.page()
	for _, x := range lines {
		page.Items = append(page.Items, v.View(x.id, x.role, x.record))
	}
	page.Next = next
	return page, nil
}

// A position is what a page of a list has: what matches, from a place on, up to a number.
type position struct {
	filter      outbox.Query
	home, owner backlog.Span
	limit       int
}

// position reads the filter, the cursor and the limit of a list.
func (v *Views) position(q wire.Query) (p position, err error) {
	if p.limit, err = wire.PageSize(q.Limit); err != nil {
		return p, err
	}
	if p.filter, err = v.Query(q); err != nil {
		return p, err
	}
	p.home, p.owner, err = readCursor(q)
	return p, err
}

// Query converts the filter of a list.
func (v *Views) Query(q wire.Query) (outbox.Query, error) {
	out := outbox.Query{Kind: q.Kind, Before: q.Before}
	switch q.Role {
	case "":
	case wire.RoleHome:
		out.Part = backlog.PartTask
	case wire.RoleOwner:
		out.Part = backlog.PartResult
	default:
		return out, fmt.Errorf("%w: role %.20q: use home or owner", wire.ErrInvalid, q.Role)
	}
	for _, name := range q.States {
		s, err := proto.ParseTaskState(name)
		if err != nil {
			return out, fmt.Errorf("%w: state: %w", wire.ErrInvalid, err)
		}
		out.States = append(out.States, s)
	}
	if q.Peer != "" {
		p, err := v.Book.Find(q.Peer)
		if err != nil {
			return out, err
		}
		out.Peer = p.Peer
	}
	label, value, labeled := strings.Cut(q.Label, "=")
	if q.Label != "" && !labeled {
		return out, fmt.Errorf("%w: label %.60q: must be name=value", wire.ErrInvalid, q.Label)
	}
	out.Match = func(_ proto.TaskID, r *proto.Record) bool {
		switch {
		case !q.After.IsZero() && r.GetCreatedMs() < q.After.UnixMilli():
			return false
		case labeled && r.GetLabels()[label] != value:
			return false
		}
		return true
	}
	return out, nil
}

// matcher returns the same filter for accepted tasks.
func (v *Views) matcher(q outbox.Query) func(proto.TaskID, *proto.Record) bool {
	return func(id proto.TaskID, r *proto.Record) bool {
		switch {
		case len(q.States) > 0 && !slices.Contains(q.States, r.GetState()),
			!q.Peer.IsZero() && string(r.GetPeer()) != string(q.Peer[:]),
			q.Kind != "" && r.GetKind() != q.Kind,
			!q.Before.IsZero() && r.GetCreatedMs() >= q.Before.UnixMilli():
			return false
		}
		return q.Match(id, r)
	}
}

// DeadLetters lists the dead letters of this node, the newest first: tasks whose home is
// this node, and results of tasks that ran here and were permanently refused by their
// homes.
func (v *Views) DeadLetters(q wire.Query) (wire.Page[wire.Task], error) {
	page := wire.Page[wire.Task]{Items: []wire.Task{}}
	p, err := v.position(q)
	if err != nil {
		return page, err
	}
	found, next, err := v.Outbox.DeadLetters(p.filter, p.home, p.limit)
	if err != nil {
		return page, err
	}
	for _, l := range found {
		role := wire.RoleHome
		if l.Result {
			role = wire.RoleOwner
		}
		page.Items = append(page.Items, v.View(l.ID, role, l.Record))
	}
	if !next.IsZero() {
		page.Next = writeCursor(wire.RoleOwner, next)
	}
	return page, nil
}
