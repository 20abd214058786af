package node

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/wire"
)

// find reads a task by its id or by a unique prefix of it. It looks first for a task
// that this node submitted.
func (n *Node) find(ref string) (proto.TaskID, string, *proto.Record, error) {
	id, err := proto.ParseTaskID(ref)
	if err != nil {
		if id, err = n.findByPrefix(ref); err != nil {
			return id, "", nil, err
		}
	}
	rec, err := n.outbox.Get(id)
	if err == nil {
		return id, wire.RoleHome, rec, nil
	}
	if !errors.Is(err, outbox.ErrNotFound) {
		return id, "", nil, err
	}
	rec, err = n.inbox.Get(id)
	if errors.Is(err, backlog.ErrNotFound) {
		rec, err = n.outbox.Result(id)
	}
	if errors.Is(err, outbox.ErrNotFound) {
		return id, "", nil, n.notHere(id)
	}
	return id, wire.RoleOwner, rec, err
}

// notHere returns an error with what is known about a task without a record here. If the
// home of its queue was here, that is how the task ended or where it moved: its record
// is at its origin.
func (n *Node) notHere(id proto.TaskID) error {
	ctx, cancel := context.WithTimeout(context.Background(), viewTimeout)
	defer cancel()
	p, known, err := n.queues.driver.FormerTask(ctx, id)
	peer, _ := n.peerNameID(p.Peer[:])
	switch {
	case err != nil || !known:
		return fmt.Errorf("%w: task %s was never here, or its record is no longer stored", wire.ErrNotFound, id)
	case p.State == proto.StateUnspecified:
		return fmt.Errorf("%w: task %s moved with its queue: ask %s or the origin of the task", wire.ErrNotFound, id, peer)
	case p.Peer.IsZero():
		return fmt.Errorf("%w: task %s ended here as %s without an owner: its origin has its record", wire.ErrNotFound, id, p.State.Name())
	}
	return fmt.Errorf("%w: task %s ended here as %s, last run by %s under epoch %s: its origin has its record", wire.ErrNotFound, id, p.State.Name(), peer, epochText(p.Epoch))
}

// findByPrefix returns the only task whose id begins with ref.
func (n *Node) findByPrefix(ref string) (proto.TaskID, error) {
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
		_, next, err := n.outbox.List(outbox.Query{Match: match}, span, wire.MaxPage)
		if err != nil {
			return proto.TaskID{}, err
		}
		if span.From = next; next.IsZero() {
			break
		}
	}
	for span := (backlog.Span{}); len(found) < 2; {
		_, next, err := n.inbox.List(span, wire.MaxPage, match)
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
func (n *Node) Task(ctx context.Context, ref string) (wire.Task, error) {
	id, role, rec, err := n.find(ref)
	if err != nil {
		return wire.Task{}, err
	}
	t := n.view(id, role, rec)
	t.Transfers = n.transfers(id)
	n.withGrants(&t, id, rec)
	return t, nil
}

// Wait returns a task once it has ended. If ctx is done first, it returns the current
// task and the error of ctx.
func (n *Node) Wait(ctx context.Context, ref string) (wire.Task, error) {
	id, role, rec, err := n.find(ref)
	if err != nil {
		return wire.Task{}, err
	}
	if role == wire.RoleOwner {
		return n.view(id, role, rec), fmt.Errorf("%w: only the home of a task can wait for it: run this on %s", wire.ErrRefused, n.view(id, role, rec).Peer)
	}
	rec, err = n.outbox.Wait(ctx, id)
	if rec == nil {
		return wire.Task{}, err
	}
	return n.view(id, role, rec), err
}

// Tasks lists the tasks that this node submitted and those that it accepted, the newest
// first.
func (n *Node) Tasks(ctx context.Context, q wire.Query) (wire.Page[wire.Task], error) {
	page := wire.Page[wire.Task]{Items: []wire.Task{}}
	limit, err := wire.PageSize(q.Limit)
	if err != nil {
		return page, err
	}
	oq, err := n.query(q)
	if err != nil {
		return page, err
	}
	home, owner, err := readCursor(q)
	if err != nil {
		return page, err
	}
	l := listing{span: home, limit: limit}
	if q.Role != wire.RoleOwner {
		found, next, err := n.outbox.List(oq, home, limit)
		if err != nil {
			return page, err
		}
		for _, f := range found {
			l.add(f.ID, wire.RoleHome, f.Record)
		}
		l.until(next)
	}
	if q.Role != wire.RoleHome {
		match := n.matcher(oq)
		found, next, err := n.inbox.List(owner, limit, func(id proto.TaskID, r *proto.Record) bool { return !inbox.MovedOn(r) && match(id, r) })
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
		page.Items = append(page.Items, n.view(x.id, x.role, x.record))
	}
	page.Next = next
	return page, nil
}

func (n *Node) query(q wire.Query) (outbox.Query, error) {
	out := outbox.Query{Kind: q.Kind, Before: q.Before}
	for _, name := range q.States {
		s, err := proto.ParseTaskState(name)
		if err != nil {
			return out, fmt.Errorf("%w: state: %w", wire.ErrInvalid, err)
		}
		out.States = append(out.States, s)
	}
	if q.Peer != "" {
		p, err := n.book.Find(q.Peer)
		if err != nil {
			return out, fmt.Errorf("%w: %w", wire.ErrNotFound, err)
		}
		out.Peer = p.Peer
	}
	label, value, labeled := strings.Cut(q.Label, "=")
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
func (n *Node) matcher(q outbox.Query) func(proto.TaskID, *proto.Record) bool {
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
func (n *Node) DeadLetters(ctx context.Context, q wire.Query) (wire.Page[wire.Task], error) {
	page := wire.Page[wire.Task]{Items: []wire.Task{}}
	limit, err := wire.PageSize(q.Limit)
	if err != nil {
		return page, err
	}
	oq, err := n.query(q)
	if err != nil {
		return page, err
	}
	span, _, err := readCursor(q)
	if err != nil {
		return page, err
	}
	found, next, err := n.outbox.DeadLetters(oq, span, limit)
	if err != nil {
		return page, err
	}
	for _, l := range found {
		role := wire.RoleHome
		if l.Result {
			role = wire.RoleOwner
		}
		page.Items = append(page.Items, n.view(l.ID, role, l.Record))
	}
	if !next.IsZero() {
		page.Next = writeCursor(wire.RoleOwner, next)
	}
	return page, nil
}

// Result returns the result of a task. The caller must close it.
func (n *Node) Result(ctx context.Context, ref string) (io.ReadCloser, wire.Task, error) {
	id, role, rec, err := n.find(ref)
	if err != nil {
		return nil, wire.Task{}, err
	}
	t := n.view(id, role, rec)
	switch {
	case role == wire.RoleOwner:
		return nil, t, fmt.Errorf("%w: the result of %s is at its home: run this on %s", wire.ErrRefused, id, t.Peer)
	case !rec.GetState().Terminal():
		return nil, t, fmt.Errorf("%w: task %s is %s and has no result yet", wire.ErrRefused, id, t.State)
	}
	body, err := n.result(rec)
	if err != nil {
		return nil, t, err
	}
	return body, t, nil
}

// Receipts returns the receipts of a task, each verified here and with everything that
// another party needs to verify it.
func (n *Node) Receipts(ctx context.Context, ref string) ([]wire.Receipt, error) {
	id, role, rec, err := n.find(ref)
	if err != nil {
		return nil, err
	}
	out := []wire.Receipt{}
	proofs := rec.GetReceipts()
	if role == wire.RoleHome {
		proofs = append([]*proto.Receipt{n.storedReceipt(id, rec)}, proofs...)
	}
	for _, rc := range proofs {
		raw, err := proto.Encode(nil, rc)
		if err != nil {
			return nil, err
		}
		s, err := identity.VerifyReceipt(n.verifier, rc)
		if err != nil { // returned with its problem
			s, _ = proto.ParseStatement(rc.GetStatement())
		}
		out = append(out, n.receipt(s, base64.StdEncoding.EncodeToString(raw), err))
	}
	return out, nil
}

// storedReceipt states that a task is, or was, durable at this home. Its original proof
// is the signature of the task, which is deleted with its body, so the home signs the
// statement again on request.
func (n *Node) storedReceipt(id proto.TaskID, rec *proto.Record) *proto.Receipt {
	s := proto.Statement{
		Fact: proto.FactStored, State: proto.Pending, Mesh: n.mesh.ID, Task: id,
		Node: n.keys.Peer(), Time: rec.GetCreatedMs(), Epoch: rec.Seq(),
	}
	return n.keys.Receipts([][]byte{s.Append(nil)})[0]
}

func (n *Node) receipt(s proto.Statement, proof string, problem error) wire.Receipt {
	name, id := n.peerNameID(s.Node[:])
	r := wire.Receipt{
		Fact: s.Fact.String(), Node: name, NodeID: id, Time: msTime(s.Time), Epoch: fmt.Sprintf("%d.%d", s.Epoch.Boot, s.Epoch.Counter),
		Attempt: s.Attempt, Proof: proof, Verified: problem == nil,
	}
	if s.State != 0 {
		r.State = s.State.Name()
	}
	if s.Algorithm == 1 {
		r.Digest = "sha256:" + hex.EncodeToString(s.Digest[:])
	}
	if problem != nil {
		r.Problem = problem.Error()
	}
	return r
}

// Cancel cancels a task. The task is CANCELLED only once its owner reports that the
// handler and all processes that it started are gone.
func (n *Node) Cancel(ctx context.Context, ref string, hard bool, reason string) (wire.Task, error) {
	id, role, rec, err := n.find(ref)
	if err != nil {
		return wire.Task{}, err
	}
	if role == wire.RoleOwner {
		return n.view(id, role, rec), fmt.Errorf("%w: a task can only be cancelled at its home: run this on %s", wire.ErrRefused, n.view(id, role, rec).Peer)
	}
	_, err = n.outbox.Cancel(ctx, id, hard, cmp.Or(reason, "cancelled by an operator"))
	if errors.Is(err, outbox.ErrEnded) {
		return n.view(id, role, rec), fmt.Errorf("%w: task %s has ended as %s", wire.ErrRefused, id, rec.GetState().Name())
	}
	if err != nil {
		return wire.Task{}, err
	}
	if err := n.audit(ctx, "task.cancel", id.String()); err != nil {
		return wire.Task{}, err
	}
	return n.Task(ctx, id.String())
}

// Purge removes ended tasks that match; it removes dead letters only if the query names
// their state. It is written to the audit because an operator requested it.
func (n *Node) Purge(ctx context.Context, q wire.Query, dryRun bool) (wire.Purged, error) {
	oq, err := n.query(q)
	if err != nil {
		return wire.Purged{}, err
	}
	done, err := n.outbox.PurgeDone(ctx, oq, dryRun)
	if err != nil {
		return wire.Purged{}, fmt.Errorf("purge: %w", err)
	}
	if len(q.States) > 0 {
		dead, err := n.outbox.PurgeDead(ctx, oq, dryRun)
		if err != nil {
			return wire.Purged{}, fmt.Errorf("purge dead letters: %w", err)
		}
		done += dead
	}
	if !dryRun {
		if err := n.audit(ctx, "task.purge", fmt.Sprintf("%d tasks", done)); err != nil {
			return wire.Purged{}, err
		}
	}
	return wire.Purged{Tasks: done, DryRun: dryRun}, nil
}

// timeOrNil returns t in UTC, or nil for the zero time.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}
