package view

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/wire"
)

// Find reads a task by its id or by a unique prefix of it. It looks first for a task
// that this node submitted.
func (v *Views) Find(ctx context.Context, ref string) (proto.TaskID, string, *proto.Record, error) {
	id, err := proto.ParseTaskID(ref)
	if err != nil {
		if id, err = v.FindByPrefix(ref); err != nil {
			return id, "", nil, err
		}
	}
	rec, err := v.Outbox.Get(id)
	if err == nil {
		return id, wire.RoleHome, rec, nil
	}
	if !errors.Is(err, outbox.ErrNotFound) {
		return id, "", nil, err
	}
	rec, err = v.Inbox.Get(id)
	if errors.Is(err, backlog.ErrNotFound) {
		rec, err = v.Outbox.Result(id)
	}
	if errors.Is(err, outbox.ErrNotFound) {
		return id, "", nil, v.notHere(ctx, id)
	}
	return id, wire.RoleOwner, rec, err
}

// notHere returns an error with what is known about a task without a record here. If the
// home of its queue was here, that is how the task ended or where it moved: its record
// is at its origin.
func (v *Views) notHere(ctx context.Context, id proto.TaskID) error {
	asking, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	p, known, err := v.Leases.FormerTask(asking, id)
	peer := v.Book.NameOf(p.Peer)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil || !known:
		return fmt.Errorf("%w: task %s was never here, or its record is no longer stored", wire.ErrNotFound, id)
	case p.State == proto.StateUnspecified:
		return fmt.Errorf("%w: task %s moved with its queue: ask %s or the origin of the task", wire.ErrNotFound, id, peer)
	case p.Peer.IsZero():
		return fmt.Errorf("%w: task %s ended here as %s without an owner: its origin has its record", wire.ErrNotFound, id, p.State.Name())
	}
	return fmt.Errorf("%w: task %s ended here as %s, last run by %s under epoch %s: its origin has its record", wire.ErrNotFound, id, p.State.Name(), peer, p.Epoch)
}

// FindByPrefix returns the only task whose id begins with ref.
func (v *Views) FindByPrefix(ref string) (proto.TaskID, error) {
	if len(ref) < 6 || len(ref) > 36 {
		return proto.TaskID{}, fmt.Errorf("%w: %.60q is not a task id: give at least the first 6 characters", wire.ErrInvalid, ref)
	}
	found := map[proto.TaskID]bool{}
	match := func(id proto.TaskID, _ *proto.Record) bool {
		if strings.HasPrefix(id.String(), strings.ToLower(ref)) {
			found[id] = true
		}
		return false
	}
	for span := (backlog.Span{}); len(found) < 2; {
		_, next, err := v.Outbox.List(outbox.Query{Match: match}, span, wire.MaxPage)
		if err != nil {
			return proto.TaskID{}, err
		}
		if span.From = next; next.IsZero() {
			break
		}
	}
	for span := (backlog.Span{}); len(found) < 2; {
		_, next, err := v.Inbox.List(span, wire.MaxPage, match)
		if err != nil {
			return proto.TaskID{}, err
		}
		if span.From = next; next.IsZero() {
			break
		}
	}
	switch len(found) {
	case 0:
		return proto.TaskID{}, fmt.Errorf("%w: no task id begins with %.36q", wire.ErrNotFound, ref)
	case 1:
		for id := range found {
			return id, nil
		}
	}
	return proto.TaskID{}, fmt.Errorf("%w: several task ids begin with %.36q: give more characters", wire.ErrInvalid, ref)
}

// Task returns one task with its events.
func (v *Views) Task(ctx context.Context, ref string) (wire.Task, error) {
	id, role, rec, err := v.Find(ctx, ref)
	if err != nil {
		return wire.Task{}, err
	}
	t := v.View(id, role, rec)
	t.Transfers = v.Transfers(id)
	v.withGrants(ctx, &t, id, rec)
	return t, nil
}

// Wait returns a task once it has ended. If ctx is done first, it returns the current
// task and the error of ctx.
func (v *Views) Wait(ctx context.Context, ref string) (wire.Task, error) {
	id, role, rec, err := v.Find(ctx, ref)
	if err != nil {
		return wire.Task{}, err
	}
	if role == wire.RoleOwner {
		return v.View(id, role, rec), fmt.Errorf("%w: only the home of a task can wait for it: run this on %s", wire.ErrRefused, v.View(id, role, rec).Peer)
	}
	rec, err = v.Outbox.Wait(ctx, id)
	if rec == nil {
		return wire.Task{}, err
	}
	return v.View(id, role, rec), err
}

// queryTimeout bounds a query to the ownership subsystem.
const queryTimeout = 2 * time.Second

// withGrants adds the lease state to the view of a task of a queue whose home is this
// node.
func (v *Views) withGrants(ctx context.Context, t *wire.Task, id proto.TaskID, r *proto.Record) {
	if _, queued := proto.QueueOf(r.GetTarget()); r.GetQueue() == "" && !queued || r.GetState().Terminal() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	task, known, err := v.Leases.Task(ctx, id)
	if err != nil || !known {
		return
	}
	running := task.Leased && r.GetState() == proto.Running // reported by its owner
	t.State, t.Attempts, t.Abandons, t.Epoch = task.State, task.Attempts, task.Abandons, task.Epoch.String()
	if running {
		t.State = r.GetState().Name()
	}
	t.Class, t.Cause, t.Reason = task.Class.Name(), "", task.Reason
	for i, g := range task.Grants {
		owner, _ := v.Book.Identify(g.GetOwner())
		e := g.Event(uint32(i+1), owner)
		x := wire.Event{Time: proto.Time(e.GetTimeMs()), Node: v.Self.Name, State: e.GetState().Name(), Attempt: e.GetAttempt()}
		t.Events = append(t.Events, withCause(x, e))
	}
	sortEvents(t.Events)
}
