package ownership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// bodies makes the empty body of a message.
var bodies = map[proto.MessageType]func() proto.Body{
	proto.TypeGrant:       func() proto.Body { return new(proto.Grant) },
	proto.TypeGranted:     func() proto.Body { return new(proto.Granted) },
	proto.TypeStart:       func() proto.Body { return new(proto.Start) },
	proto.TypePermit:      func() proto.Body { return new(proto.Permit) },
	proto.TypeRenew:       func() proto.Body { return new(proto.Renew) },
	proto.TypeRenewed:     func() proto.Body { return new(proto.Renewed) },
	proto.TypeRelease:     func() proto.Body { return new(proto.Release) },
	proto.TypeReleased:    func() proto.Body { return new(proto.ReleaseReply) },
	proto.TypeStatus:      func() proto.Body { return new(proto.Status) },
	proto.TypeStatusReply: func() proto.Body { return new(proto.StatusReply) },
	proto.TypeCommitted:   func() proto.Body { return new(proto.Committed) },
	proto.TypeHandoff:     func() proto.Body { return new(proto.Handoff) },
	proto.TypeHandedOff:   func() proto.Body { return new(proto.HandedOff) },
	proto.TypeQueues:      func() proto.Body { return new(proto.QueueStates) },
	proto.TypeWithdraw:    func() proto.Body { return new(proto.Cancel) },
}

// Receive takes a message of a node that was authenticated as from. What finds no
// room is dropped: it is said again. An error is the sender's fault.
func (r *Room) Receive(from proto.PeerID, m *proto.Message) error {
	var in func()
	if m.GetType() == proto.TypeEnded {
		u, err := r.with.Seals.Unseal(from, m)
		if err != nil {
			r.refuseResult(from, u, err)
			return err
		}
		in = func() { r.result(from, u) }
	} else {
		make := bodies[m.GetType()]
		if make == nil {
			return fmt.Errorf("%w: a message of type %s", proto.ErrMalformed, m.GetType())
		}
		body := make()
		if err := proto.DecodeKnown(m.GetPayload(), body); err != nil {
			return err
		}
		if err := checkForm(body); err != nil {
			return err
		}
		if h, ok := body.(*proto.Handoff); ok {
			return r.receiveHandoff(from, h)
		}
		code := r.codeOf(from, body)
		in = func() { r.hear(from, m.GetType(), body, code) }
	}
	r.offer(from, in)
	return nil
}

// refuseResult ends the lease of a node whose result is refused for good, for who it is or
// for what it says: it would bring it again and again, and hold the task meanwhile.
func (r *Room) refuseResult(from proto.PeerID, u Unsealed, err error) {
	switch codeOf(err) {
	case proto.CodeDenied, proto.CodeBadForm, proto.CodeUnknownVersion, proto.CodeTooLarge:
	default:
		return // it may count when it is said again
	}
	if u.Task.IsZero() {
		return
	}
	cause := err.Error()
	r.offer(from, func() { r.add(r.home.RefuseResult(from, u.Task, cause, r.now())) })
}

// codeOf is the code that a refused message is answered with.
func codeOf(err error) proto.Code {
	if c, ok := errors.AsType[interface {
		error
		Refusal() proto.Code
	}](err); ok {
		return c.Refusal()
	}
	return proto.CodeOK
}

// receiveHandoff takes a task, or word of a queue, from an old home.
func (r *Room) receiveHandoff(from proto.PeerID, m *proto.Handoff) (err error) {
	var t Task
	if m.Lease != nil {
		if t, err = r.with.Mover.Check(from, m); err != nil {
			if _, bad := proto.TaskIDFrom(m.Lease.Task); bad == nil {
				r.with.Network.Post(from, proto.TypeHandedOff, refusedHandoff(m.Lease, err))
			}
			return err
		}
	}
	r.offer(from, func() { r.handoff(from, m, t) })
	return nil
}

// handoff gives m to the home, with the custody of its task. Whoever hands over names
// this node as the new home of the queue: it never had the right to name another.
func (r *Room) handoff(from proto.PeerID, m *proto.Handoff, t Task) {
	if m.Queue != nil && string(m.Queue.GetHome()) != string(r.cfg.Self[:]) {
		r.add(Output{Events: []Event{{Kind: EventUnheeded, Queue: m.Queue.GetName(), Peer: from, Cause: "it went on to another home"}}})
		m.Queue = nil
	}
	if m.Lease == nil {
		r.add(r.home.OnHandoff(from, m, t, r.now()))
		return
	}
	into, drop, err := r.with.Mover.Adopt(m)
	if err != nil {
		r.cfg.Logger.Warn("a task that was handed over cannot be taken", "task", t.ID.String(), "from", from.Short(), "err", err)
		r.add(Output{Sends: []Send{{To: from, Type: proto.TypeHandedOff, Body: refusedHandoff(m.Lease, err)}}})
		return // it is sent again
	}
	out := r.home.OnHandoff(from, m, t, r.now())
	if !r.add(out) || !slices.ContainsFunc(out.Events, func(e Event) bool { return e.Kind == EventMovedIn && e.Task == t.ID }) {
		drop()
		return
	}
	key := taskKey(keyLease, t.ID)
	at := slices.IndexFunc(out.Writes, func(w Write) bool { return w.Key == key })
	r.turn.came[key] = out.Writes[at].Val // it may have ended in the same moment: it was cancelled on its way
	r.turn.with = append(r.turn.with, into)
	r.turn.bytes += len(m.GetTask().GetEnvelope().GetHeader()) + len(m.GetTask().GetEnvelope().GetBody())
}

// refusedHandoff tells an old home why a task of its was not taken.
func refusedHandoff(l *proto.Lease, err error) *proto.HandedOff {
	x := &proto.HandoffRefused{Task: l.GetTask(), Generation: l.GetGeneration(), Code: cmp.Or(codeOf(err), proto.CodeBadForm), Reason: proto.Clip(err.Error(), proto.MaxReason)}
	return &proto.HandedOff{Refused: []*proto.HandoffRefused{x}}
}

// hear gives a message to the machine that it is for.
func (r *Room) hear(from proto.PeerID, t proto.MessageType, body proto.Body, code proto.Code) {
	now := r.now()
	switch m := body.(type) {
	case *proto.Grant:
		r.grant(from, m, code)
	case *proto.Granted:
		r.add(r.home.OnGranted(from, m, now))
	case *proto.Start:
		r.add(r.home.OnStart(from, m, now))
	case *proto.Permit:
		r.add(r.owner.OnPermit(from, m, now))
	case *proto.Renew:
		r.add(r.home.OnRenew(from, m, now))
	case *proto.Renewed:
		r.add(r.owner.OnRenewed(from, m, now))
	case *proto.Release:
		r.add(r.home.OnRelease(from, m, now))
	case *proto.ReleaseReply:
		r.add(r.owner.OnReleaseReply(from, m, now))
	case *proto.Status:
		r.add(r.owner.OnStatus(from, m, now))
	case *proto.StatusReply:
		r.add(r.home.OnStatusReply(from, m, now))
	case *proto.Cancel:
		r.add(r.owner.OnCancel(from, m, now))
		r.add(r.home.OnCancel(from, m, now))
	case *proto.HandedOff:
		r.add(r.home.OnHandedOff(from, m, now))
	case *proto.Committed:
		for _, x := range m.GetRulings() {
			r.add(r.owner.OnResultAnswer(from, x, now))
		}
	case *proto.QueueStates:
		for _, q := range m.GetQueues() {
			if string(q.GetHome()) != string(from[:]) { // a node speaks for its own queues alone
				r.add(Output{Events: []Event{{Kind: EventForged, Queue: q.GetName(), Peer: from, Cause: "it speaks for a queue of another home"}}})
				continue
			}
			_, o := r.home.Learn(q, now)
			r.add(o)
		}
	default:
		r.cfg.Logger.Debug("a message that is not taken here", "type", t.String(), "from", from.Short())
	}
}

func (r *Room) grant(from proto.PeerID, m *proto.Grant, code proto.Code) {
	o := r.owner.OnGrant(from, m, code, r.now())
	for _, id := range o.Waits {
		r.grants[id] = grantIn{from, m}
	}
	r.add(o)
}

// result holds a result against the commit rule.
func (r *Room) result(from proto.PeerID, u Unsealed) {
	if c := r.home.cells[u.Task]; c != nil && c.owner == from && u.Outcome.TooLarge(c.task.MaxResult) {
		u.Absent = false // nobody waits for its body
		r.cfg.Logger.Warn("a result is larger than its task takes: it is refused, and the task is a dead letter", "task", u.Task.String(), "from", from.Short(), "reason", u.Outcome.GetReason())
		r.add(Output{Events: []Event{{Kind: EventForged, Task: u.Task, Queue: c.task.Queue, Peer: from, Epoch: c.epoch, Cause: proto.Clip(u.Outcome.GetReason(), 128)}}})
	}
	in := ResultOf(u.Task, u.Outcome)
	in.Absent = u.Absent
	ruling, out := r.home.OnResult(from, in, r.now())
	if !r.add(out) {
		return
	}
	if len(out.Ends) > 0 {
		r.claims[u.Task] = u.Outcome
	}
	r.turn.rulings[from] = append(r.turn.rulings[from], ruling)
}

// Awaits says what a home would answer to a result whose body is not here: NEED_BODY if
// it counts as things are now, TOO_LARGE if it ends the task without its body.
func (r *Room) Awaits(ctx context.Context, from proto.PeerID, id proto.TaskID, o *proto.Outcome) (proto.Code, error) {
	return asked(ctx, r, func() proto.Code {
		in := ResultOf(id, o)
		in.Absent = true
		ruling, out := r.home.OnResult(from, in, r.now())
		r.add(out)
		if c := r.home.cells[id]; ruling.Code == proto.CodeNeedBody && c.task.MaxResult > 0 && o.GetBodySize() > c.task.MaxResult {
			return proto.CodeTooLarge
		}
		return ruling.Code
	})
}

// MayMove reports whether from may hand a task over: it was sent to it, or from is or
// was the home of its queue.
func (r *Room) MayMove(ctx context.Context, from proto.PeerID, t Task) (bool, error) {
	return asked(ctx, r, func() bool { return r.home.mayMove(from, t) })
}

// Fetch says that the body of a task that was granted here is awaited, or no more.
func (r *Room) Fetch(id proto.TaskID, on bool) {
	r.put(context.Background(), func() { r.add(r.owner.Fetch(id, on, r.now())) })
}

// Return gives a lease back that was not started, and returns once that is durable.
func (r *Room) Return(ctx context.Context, id proto.TaskID, reason string, retryAfterMs uint64) error {
	return r.ask(ctx, func() { r.add(r.owner.Return(id, reason, retryAfterMs, r.now())) })
}

// Ready says that a slot is free for a granted task, and waits for its start. It
// reports false when it must not start here any more. p is what its handler wants if
// the node dies while it runs.
func (r *Room) Ready(ctx context.Context, id proto.TaskID, p Policy) (Start, bool) {
	start := make(chan Start, 1)
	in := func() {
		x := r.owner.runs[id]
		if x == nil || x.phase != proto.LeaseReceived || r.ready[id] != nil {
			close(start)
			return
		}
		r.ready[id], r.policies[id] = start, p
		if p == PolicyProbe {
			r.keepProbe(id, r.grants[id].msg)
		}
		r.add(r.owner.Ready(id, r.now()))
	}
	if !r.put(ctx, in) {
		return Start{}, false
	}
	select {
	case s, ok := <-start:
		return s, ok
	case <-r.done:
		return Start{}, false
	}
}

// Finish takes the result of a run, and returns once it is durable.
func (r *Room) Finish(ctx context.Context, id proto.TaskID, o *proto.Outcome) error {
	b, err := proto.Encode(nil, o)
	if err != nil {
		return fmt.Errorf("result of %s: %w", id, err)
	}
	return r.ask(ctx, func() {
		delete(r.alive, id)
		kept, out := r.owner.Finish(id, o.GetState(), o.GetBodyDigest(), r.now())
		if kept {
			r.keepResult(id, o, b)
		} else {
			r.turn.done[id] = o
		}
		r.add(out)
	})
}

// Probed takes the answer to [Asker.Probe], and returns once it is durable: done with
// the result that goes home, which may be empty, not done, or unknown.
func (r *Room) Probed(ctx context.Context, id proto.TaskID, done, unknown bool, o *proto.Outcome) error {
	b, err := proto.Encode(nil, o)
	if err != nil {
		return fmt.Errorf("result of %s: %w", id, err)
	}
	return r.ask(ctx, func() {
		if x := r.owner.runs[id]; x == nil || !x.mem.probing {
			return
		}
		r.add(r.owner.Probed(id, done, unknown, o.GetBodyDigest(), r.now()))
		if done && !unknown {
			r.keepResult(id, o, b)
		}
	})
}

// Fail takes the end of a run without a result, and returns once it is durable.
func (r *Room) Fail(ctx context.Context, id proto.TaskID, why *proto.Released) error {
	return r.ask(ctx, func() {
		delete(r.alive, id)
		r.add(r.owner.Fail(id, why, r.now()))
	})
}

// Add takes a task that is durable here. It returns at once.
func (r *Room) Add(t Task, cancel bool) {
	r.put(context.Background(), func() {
		r.add(r.home.Add(t, r.now()))
		if cancel {
			_, o := r.home.Cancel(t.ID, r.now())
			r.add(o)
		}
	})
}

// Cancel asks for the end of a task. If its cell is here it returns once that is
// durable; a wish for one that moved is sent after it, and must be said again.
func (r *Room) Cancel(ctx context.Context, id proto.TaskID) (Standing, error) {
	return asked(ctx, r, func() Standing {
		where, o := r.home.Cancel(id, r.now())
		r.add(o)
		return where
	})
}

// SetNode says what is known about a node.
func (r *Room) SetNode(n Node) {
	r.put(context.Background(), func() {
		n.Busy = max(n.Busy-r.owned(n.Peer), 0)
		r.add(r.home.SetNode(n, r.now()))
	})
}

// owned is how many leases this home gave to p: what p says of its slots counts them
// too.
func (r *Room) owned(p proto.PeerID) (n int) {
	for _, q := range r.home.queues {
		n += q.usage.On(p)
	}
	return n
}

// Dead says that a node is gone.
func (r *Room) Dead(p proto.PeerID) {
	r.put(context.Background(), func() { r.add(r.home.Dead(p, r.now())) })
}

// Revoked says that a node was revoked: what it said of queues goes.
func (r *Room) Revoked(p proto.PeerID) {
	r.put(context.Background(), func() { r.add(r.home.Revoked(p, r.now())) })
}

// SetActive says whether this node may grant to others and take back leases (I16).
func (r *Room) SetActive(on bool) {
	r.put(context.Background(), func() {
		if on != r.home.active {
			r.add(r.home.SetActive(on, r.now()))
		}
	})
}

// Stop gives back what waits here for a slot, at a graceful stop.
func (r *Room) Stop() {
	r.put(context.Background(), func() { r.add(r.owner.Stop(r.now())) })
}

// ErrElsewhere is returned for a wish about a queue whose home is another node.
var ErrElsewhere = errors.New("ownership: the home of the queue is another node")

// SetQueue changes a queue whose home is here, or makes it as an admin, and returns once
// that is durable.
func (r *Room) SetQueue(ctx context.Context, name string, change func(*proto.QueueState)) error {
	return r.MakeQueue(ctx, name, nil, change)
}

// MakeQueue is SetQueue with the deed of an admin, by which the queue is made.
func (r *Room) MakeQueue(ctx context.Context, name string, deed *proto.Signed, change func(*proto.QueueState)) error {
	refused, err := asked(ctx, r, func() error {
		o, refused := r.home.Make(name, change, deed, r.now())
		r.add(o)
		return refused
	})
	if errors.Is(refused, ErrMade) && r.QueueStates()[name] != nil {
		refused = ErrElsewhere // it went while this was asked for
	}
	return errors.Join(err, refused)
}

// SignFor signs as an admin that p made a queue, and returns once that is durable.
func (r *Room) SignFor(ctx context.Context, name string, p proto.PeerID) (*proto.Signed, error) {
	return r.signed(ctx, func() (*proto.Signed, error) {
		s, o, refused := r.home.SignFor(name, p, r.now())
		r.add(o)
		return s, refused
	})
}

// Confirm signs as an admin that p is the home of a queue, as it is known here.
func (r *Room) Confirm(ctx context.Context, name string, generation uint64, p proto.PeerID) (*proto.Signed, error) {
	return r.signed(ctx, func() (*proto.Signed, error) { return r.home.Confirm(name, generation, p) })
}

func (r *Room) signed(ctx context.Context, sign func() (*proto.Signed, error)) (*proto.Signed, error) {
	type answer struct {
		signed  *proto.Signed
		refused error
	}
	a, err := asked(ctx, r, func() (a answer) { a.signed, a.refused = sign(); return a })
	if err = errors.Join(err, a.refused); err != nil {
		return nil, err
	}
	return a.signed, nil
}

// Confirmed adds to a queue whose home is here what an admin has signed about that.
func (r *Room) Confirmed(ctx context.Context, name string, deed *proto.Signed) error {
	refused, err := asked(ctx, r, func() error {
		o, refused := r.home.Confirmed(name, deed, r.now())
		r.add(o)
		return refused
	})
	return errors.Join(err, refused)
}

// maxSince is how many changes of its home may follow what an admin has signed of a queue
// before one is asked to confirm the home.
const maxSince = proto.MaxDeeds / 2

// Unconfirmed returns the queues whose home is here and which an admin should confirm,
// with their generations.
func (r *Room) Unconfirmed(ctx context.Context) (map[string]uint64, error) {
	return asked(ctx, r, func() map[string]uint64 {
		all := map[string]uint64{}
		for name, q := range r.home.queues {
			if q.known() && q.here(r.cfg.Self) && r.home.unconfirmed(q) {
				all[name] = q.state.Generation
			}
		}
		return all
	})
}

// HandOff gives a queue whose home is here, and all that is in it, to another home. It
// returns once the queue is the other's; its tasks follow.
func (r *Room) HandOff(ctx context.Context, name string, to proto.PeerID) error {
	refused, err := asked(ctx, r, func() error {
		o, refused := r.home.HandOff(name, to, r.now())
		r.add(o)
		return refused
	})
	return errors.Join(err, refused)
}

// Seize makes this node the home of a queue whose home is gone, and returns once that
// is durable.
func (r *Room) Seize(ctx context.Context, name string, from proto.PeerID) error {
	refused, err := asked(ctx, r, func() error {
		o, refused := r.home.Seize(name, from, r.now())
		r.add(o)
		return refused
	})
	return errors.Join(err, refused)
}

// Reclass gives a task whose cell is here another class, and returns once that is
// durable. It reports whether the cell is here and has not ended.
func (r *Room) Reclass(ctx context.Context, id proto.TaskID, class proto.Class) (known bool, err error) {
	return asked(ctx, r, func() bool {
		known, o := r.home.Reclass(id, class, r.now())
		r.add(o)
		return known
	})
}

// Unblock lets a lane of a queue go on, and returns once that is durable. It reports
// whether there is one here that stood still.
func (r *Room) Unblock(ctx context.Context, queue, key string) (stood bool, err error) {
	return asked(ctx, r, func() bool {
		stood, o := r.home.Unblock(queue, key, r.now())
		r.add(o)
		return stood
	})
}

// Progress notes that the handler of a lease of this node has made some. From its
// first word on it must go on doing so, or the lease is not renewed. It reports
// whether there is such a handler.
func (r *Room) Progress(ctx context.Context, id proto.TaskID) (known bool, err error) {
	return asked(ctx, r, func() bool { return r.owner.Progress(id, r.now()) })
}

// Recover takes one lease back by hand. It reports whether there was one that may be
// taken back.
func (r *Room) Recover(ctx context.Context, id proto.TaskID) (done bool, err error) {
	return asked(ctx, r, func() bool {
		done, o := r.home.Recover(id, r.now())
		r.add(o)
		return done
	})
}
