package ownership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// bodies creates the empty body of a message.
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

// Receive takes a message from an authenticated node. It is dropped if there is no room:
// senders repeat messages. An error is the sender's fault.
func (d *Driver) Receive(from proto.PeerID, m *proto.Message) error {
	var in func()
	typ, bytes := m.GetType(), len(m.GetPayload())
	if m.GetType() == proto.TypeEnded {
		u, err := d.parts.Sealer.Unseal(from, m)
		if err != nil {
			d.refuseResult(from, u, err)
			return err
		}
		in, bytes = func() { d.handleResult(from, u) }, proto.Size(u.Outcome)
	} else {
		make := bodies[m.GetType()]
		if make == nil {
			return fmt.Errorf("%w: a message of type %s", proto.ErrMalformed, m.GetType())
		}
		body := make()
		if err := proto.DecodeKnown(m.GetPayload(), body); err != nil {
			return err
		}
		if err := validate(body); err != nil {
			return err
		}
		if h, ok := body.(*proto.Handoff); ok {
			return d.receiveHandoff(from, h, bytes)
		}
		code := d.grantCode(from, body)
		if g, ok := body.(*proto.Grant); ok && code != proto.CodeOK {
			g.Envelope = nil // it is not taken
			bytes = proto.Size(g)
		}
		in = func() { d.handleMessage(from, typ, body, code) } // without m, which has the whole frame
	}
	d.enqueueFrom(from, bytes, in)
	return nil
}

// refuseResult ends the lease of a node whose result is rejected for good, because of its
// sender or its content. Otherwise the node would send it again and again and keep the
// task.
func (d *Driver) refuseResult(from proto.PeerID, u Unsealed, err error) {
	switch refusalCode(err) {
	case proto.CodeDenied, proto.CodeBadForm, proto.CodeUnknownVersion, proto.CodeTooLarge:
	default:
		return // it may count when it is sent again
	}
	if u.Task.IsZero() {
		return
	}
	cause := err.Error()
	d.enqueueFrom(from, len(cause), func() { d.merge(d.home.RefuseResult(from, u.Task, cause, d.now())) })
}

// refusalCode returns the code that answers a rejected message.
func refusalCode(err error) proto.Code {
	if c, ok := errors.AsType[interface {
		error
		Refusal() proto.Code
	}](err); ok {
		return c.Refusal()
	}
	return proto.CodeOK
}

// receiveHandoff takes a task or a queue state from an old home, in a message of so many bytes.
func (d *Driver) receiveHandoff(from proto.PeerID, m *proto.Handoff, bytes int) (err error) {
	var t Task
	if m.Lease != nil {
		if t, err = d.parts.Mover.Check(from, m); err != nil {
			if _, bad := proto.TaskIDFrom(m.Lease.Task); bad == nil {
				d.parts.Network.Post(from, proto.TypeHandedOff, refusedHandoff(m.Lease, cmp.Or(refusalCode(err), proto.CodeBadForm), err.Error()))
			}
			return err
		}
	}
	d.enqueueFrom(from, bytes, func() { d.handleHandoff(from, m, t) })
	return nil
}

// handleHandoff passes m to the home, with the custody of its task. The sender must name
// this node as the new home of the queue: it never had the right to name another.
func (d *Driver) handleHandoff(from proto.PeerID, m *proto.Handoff, t Task) {
	if m.Queue != nil && string(m.Queue.GetHome()) != string(d.cfg.Self[:]) {
		d.merge(Output{Events: []Event{{Kind: EventIgnored, Queue: m.Queue.GetName(), Peer: from, Detail: "the queue went to another home"}}})
		m.Queue = nil
	}
	if m.Lease == nil {
		d.merge(d.home.OnHandoff(from, m, t, d.now()))
		return
	}
	into, drop, err := d.parts.Mover.Adopt(m)
	if err != nil {
		d.cfg.Logger.Warn("a task that was handed over could not be stored", "task", t.ID.String(), "from", from, "err", err)
		d.merge(Output{Sends: []Send{{To: from, Type: proto.TypeHandedOff, Body: refusedHandoff(m.Lease, cmp.Or(refusalCode(err), proto.CodeBadForm), err.Error())}}})
		return // it is sent again
	}
	out := d.home.OnHandoff(from, m, t, d.now())
	if !d.merge(out) || !slices.ContainsFunc(out.Events, func(e Event) bool { return e.Kind == EventMovedIn && e.Task == t.ID }) {
		drop()
		return
	}
	key := taskKey(keyLease, t.ID)
	at := slices.IndexFunc(out.Writes, func(w Write) bool { return w.Key == key })
	d.pending.arrived[key] = out.Writes[at].Val // it may have ended at once: it was cancelled in transit
	d.pending.with = append(d.pending.with, into)
	d.pending.bytes += len(m.GetTask().GetEnvelope().GetHeader()) + len(m.GetTask().GetEnvelope().GetBody())
}

// refusedHandoff tells an old home why a task was not taken.
func refusedHandoff(l *proto.Lease, code proto.Code, reason string) *proto.HandedOff {
	x := &proto.HandoffRefused{Task: l.GetTask(), Generation: l.GetGeneration(), Code: code, Reason: proto.Clip(reason, proto.MaxReason)}
	return &proto.HandedOff{Refused: []*proto.HandoffRefused{x}}
}

// handleMessage passes a message to the right state machine.
func (d *Driver) handleMessage(from proto.PeerID, t proto.MessageType, body proto.Body, code proto.Code) {
	now := d.now()
	switch m := body.(type) {
	case *proto.Grant:
		d.handleGrant(from, m, code)
	case *proto.Granted:
		d.merge(d.home.OnGranted(from, m, now))
	case *proto.Start:
		d.merge(d.home.OnStart(from, m, now))
	case *proto.Permit:
		d.merge(d.owner.OnPermit(from, m, now))
	case *proto.Renew:
		d.merge(d.home.OnRenew(from, m, now))
	case *proto.Renewed:
		d.merge(d.owner.OnRenewed(from, m, now))
	case *proto.Release:
		d.merge(d.home.OnRelease(from, m, now))
	case *proto.ReleaseReply:
		d.merge(d.owner.OnReleaseReply(from, m, now))
	case *proto.Status:
		d.merge(d.owner.OnStatus(from, m, now))
	case *proto.StatusReply:
		d.merge(d.home.OnStatusReply(from, m, now))
	case *proto.Cancel:
		d.merge(d.owner.OnCancel(from, m, now))
		d.merge(d.home.OnCancel(from, m, now))
	case *proto.HandedOff:
		d.merge(d.home.OnHandedOff(from, m, now))
	case *proto.Committed:
		for _, x := range m.GetRulings() {
			d.merge(d.owner.OnResultAnswer(from, x, now))
		}
	case *proto.QueueStates:
		for _, q := range m.GetQueues() {
			if string(q.GetHome()) != string(from[:]) { // a node announces only its own queues
				d.merge(Output{Events: []Event{{Kind: EventForged, Queue: q.GetName(), Peer: from, Cause: wire.LeaseForeignQueue}}})
				continue
			}
			_, o := d.home.Learn(q, now)
			d.merge(o)
		}
	default:
		d.cfg.Logger.Debug("a message of an unexpected type", "type", t.String(), "from", from)
	}
}

func (d *Driver) handleGrant(from proto.PeerID, m *proto.Grant, code proto.Code) {
	if code == proto.CodeOK && d.keepsEnough(from) {
		code = proto.CodeBusy
	}
	o := d.owner.OnGrant(from, m, code, d.now())
	for _, id := range o.Waits {
		d.starts.release(id) // of an earlier lease, which ended in this step
		d.starts.grants[id] = receivedGrant{from, m}
	}
	d.merge(o)
}

// handleResult applies the commit rule to a result.
func (d *Driver) handleResult(from proto.PeerID, u Unsealed) {
	if ts := d.home.tasks[u.Task]; ts != nil && ts.owner == from && u.Outcome.TooLarge(ts.task.Options) {
		u.Absent = false // no node waits for its body
		d.cfg.Logger.Warn("a result exceeds the limit of its task: it is rejected, and the task is a dead letter", "task", u.Task.String(), "from", from, "reason", u.Outcome.GetReason())
		e := Event{Kind: EventForged, Task: u.Task, Queue: ts.task.Queue, Peer: from, Epoch: ts.epoch, Cause: wire.LeaseCause(proto.TaskResultTooLarge.Name()), Detail: proto.Clip(u.Outcome.GetReason(), 128)}
		d.merge(Output{Events: []Event{e.of(ts)}})
	}
	in := ResultOf(u.Task, u.Outcome)
	in.Absent = u.Absent
	ruling, out := d.home.OnResult(from, in, d.now())
	if !d.merge(out) {
		return
	}
	if len(out.Ends) > 0 {
		d.received[u.Task] = u.Outcome
	}
	d.pending.rulings[from] = append(d.pending.rulings[from], ruling)
}

// PreviewResult returns what a home would answer to a result whose body is not here:
// NEED_BODY if it counts at present, TOO_LARGE if it ends the task without its body.
func (d *Driver) PreviewResult(ctx context.Context, from proto.PeerID, id proto.TaskID, o *proto.Outcome) (proto.Code, error) {
	return call(ctx, d, func() proto.Code {
		in := ResultOf(id, o)
		in.Absent = true
		ruling, out := d.home.OnResult(from, in, d.now())
		d.merge(out)
		if ts := d.home.tasks[id]; ruling.Code == proto.CodeNeedBody && ts.task.Options.Exceeded(o.GetBodySize()) {
			return proto.CodeTooLarge
		}
		return ruling.Code
	})
}

// MayHandOff reports whether from may hand over a task: it is or was the home of the task's
// queue.
func (d *Driver) MayHandOff(ctx context.Context, from proto.PeerID, t Task) (bool, error) {
	return call(ctx, d, func() bool { return d.home.titles.wasHome(t.Queue, from) })
}

// Fetch records whether the body of a granted task is needed.
func (d *Driver) Fetch(id proto.TaskID, on bool) {
	d.enqueue(context.Background(), func() { d.merge(d.owner.Fetch(id, on, d.now())) })
}

// Return releases a lease that was not started, and returns once that is durable.
func (d *Driver) Return(ctx context.Context, id proto.TaskID, reason string, retryAfterMs uint64) error {
	return d.do(ctx, func() { d.merge(d.owner.Return(id, reason, retryAfterMs, d.now())) })
}

// Ready reports a free slot for a granted task, and waits for its start. It returns false
// if the task must not start here any more. p is the crash policy of its handler: with
// PolicyRetry the handler may run before its start is durable.
func (d *Driver) Ready(ctx context.Context, id proto.TaskID, p Policy) (Start, bool) {
	start := make(chan Start, 1)
	in := func() {
		x := d.owner.runs[id]
		if x == nil || x.phase != proto.LeaseReceived || d.starts.waiters[id] != nil {
			close(start)
			return
		}
		d.starts.waiters[id], d.records.policies[id] = start, p
		if p == PolicyProbe {
			if err := d.records.keepProbe(&d.pending, id, d.starts.grants[id].msg); err != nil {
				d.cfg.Logger.Warn("a grant could not be stored: its handler will not be probed if the node dies", "task", id.String(), "err", err)
			}
		}
		d.merge(d.owner.Ready(id, p == PolicyRetry, d.now()))
	}
	if !d.enqueue(ctx, in) {
		return Start{}, false
	}
	select {
	case s, ok := <-start:
		return s, ok
	case <-d.done:
		return Start{}, false
	}
}

// Finish takes the result of a run, and returns once it is durable.
func (d *Driver) Finish(ctx context.Context, id proto.TaskID, o *proto.Outcome) error {
	b, err := proto.Encode(nil, o)
	if err != nil {
		return fmt.Errorf("result of %s: %w", id, err)
	}
	return d.do(ctx, func() {
		delete(d.starts.running, id)
		kept, out := d.owner.Finish(id, o.GetState(), o.GetBodyDigest(), d.now())
		if kept {
			d.records.keepResult(&d.pending, d.owner.runs[id], o, b)
		} else {
			d.pending.done[id] = o
		}
		d.merge(out)
	})
}

// Probed takes the answer to [Prober.Probe], and returns once it is durable: done, with the
// result to deliver, which may be empty; not done; or unknown.
func (d *Driver) Probed(ctx context.Context, id proto.TaskID, done, unknown bool, o *proto.Outcome) error {
	b, err := proto.Encode(nil, o)
	if err != nil {
		return fmt.Errorf("result of %s: %w", id, err)
	}
	return d.do(ctx, func() {
		if x := d.owner.runs[id]; x == nil || !x.mem.probing {
			return
		}
		d.merge(d.owner.Probed(id, done, unknown, o.GetBodyDigest(), d.now()))
		if done && !unknown {
			d.records.keepResult(&d.pending, d.owner.runs[id], o, b)
		}
	})
}

// Fail takes the end of a run without a result, and returns once it is durable.
func (d *Driver) Fail(ctx context.Context, id proto.TaskID, why *proto.Released) error {
	return d.do(ctx, func() {
		delete(d.starts.running, id)
		d.merge(d.owner.Fail(id, why, d.now()))
	})
}

// Add takes a task that is durable here. It returns at once.
func (d *Driver) Add(t Task) {
	d.enqueue(context.Background(), func() { d.merge(d.home.Add(t, d.now())) })
}

// Cancel cancels a task, hard: at once. If the task is here it returns once that is durable;
// a cancel for a task that moved is forwarded, and must be repeated.
func (d *Driver) Cancel(ctx context.Context, id proto.TaskID, hard bool) (Location, error) {
	return callHome(ctx, d, func() (Location, Output) { return d.home.Cancel(id, hard, d.now()) })
}

// callHome calls in, which changes the home, and returns its answer once that is durable.
func callHome[T any](ctx context.Context, d *Driver, in func() (T, Output)) (T, error) {
	return call(ctx, d, func() T {
		v, o := in()
		d.merge(o)
		return v
	})
}

// SetNode updates what is known about a node. Its Busy includes the leases of this home.
func (d *Driver) SetNode(n Node) {
	d.enqueue(context.Background(), func() {
		now := d.now()
		for _, q := range d.home.queues {
			n.Busy -= q.usage.Peak(n.Peer, now.Mono)
		}
		n.Busy = max(n.Busy, 0)
		d.merge(d.home.SetNode(n, now))
	})
}

// Dead reports that a node is dead.
func (d *Driver) Dead(p proto.PeerID) {
	d.enqueue(context.Background(), func() { d.merge(d.home.Dead(p, d.now())) })
}

// Revoked reports that a node was revoked: its queue states are dropped.
func (d *Driver) Revoked(p proto.PeerID) {
	d.enqueue(context.Background(), func() { d.merge(d.home.Revoked(p, d.now())) })
}

// HomeRevoked is called repeatedly while p, the home of leases of this node, is revoked: see
// [Owner.HomeRevoked].
func (d *Driver) HomeRevoked(p proto.PeerID) {
	d.enqueue(context.Background(), func() { d.merge(d.owner.HomeRevoked(p, d.now())) })
}

// SetActive sets whether this node may grant to others and reclaim leases (I16).
func (d *Driver) SetActive(on bool) {
	d.enqueue(context.Background(), func() {
		if on != d.home.active {
			d.merge(d.home.SetActive(on, d.now()))
		}
	})
}

// Stop releases, at a graceful stop, the leases that wait here for a slot.
func (d *Driver) Stop() {
	d.enqueue(context.Background(), func() { d.merge(d.owner.Stop(d.now())) })
}

// ErrElsewhere is returned for a request about a queue whose home is another node.
var ErrElsewhere = errors.New("ownership: the home of the queue is another node")

// CreateQueue changes a queue whose home is here, or creates it with an admin's deed, nil if
// this node is one, and returns once that is durable. Another name than that of a queue has no
// settings to change but whether it is removed.
func (d *Driver) CreateQueue(ctx context.Context, name string, deed *proto.Signed, change func(*proto.QueueState)) error {
	err := d.ask(ctx, func() (Output, error) { return d.home.CreateQueue(name, change, deed, d.now()) })
	if errors.Is(err, ErrNameTaken) && (d.QueueStates()[name] != nil || d.Titles()[name] != nil) {
		return ErrElsewhere // it moved in the meantime
	}
	return err
}

// SignCreation signs as an admin that a queue is created with p as its home, and returns
// once that is durable.
func (d *Driver) SignCreation(ctx context.Context, name string, p proto.PeerID) (*proto.Signed, error) {
	return d.signed(ctx, func() (*proto.Signed, error) {
		s, o, refused := d.home.SignCreation(name, p, d.now())
		d.merge(o)
		return s, refused
	})
}

// Confirm signs as an admin that p is the home of a queue, as is known here.
func (d *Driver) Confirm(ctx context.Context, name string, generation uint64, p proto.PeerID) (*proto.Signed, error) {
	return d.signed(ctx, func() (*proto.Signed, error) { return d.home.titles.confirm(name, generation, p) })
}

func (d *Driver) signed(ctx context.Context, sign func() (*proto.Signed, error)) (*proto.Signed, error) {
	type answer struct {
		signed  *proto.Signed
		refused error
	}
	a, err := call(ctx, d, func() (a answer) { a.signed, a.refused = sign(); return a })
	if err = errors.Join(err, a.refused); err != nil {
		return nil, err
	}
	return a.signed, nil
}

// ask calls in, which changes the home unless it is refused, and returns once that is
// durable.
func (d *Driver) ask(ctx context.Context, in func() (Output, error)) error {
	refused, err := call(ctx, d, func() error {
		o, refused := in()
		d.merge(o)
		return refused
	})
	return errors.Join(err, refused)
}

// Confirmed adds an admin's confirmation to a queue whose home is here.
func (d *Driver) Confirmed(ctx context.Context, name string, deed *proto.Signed) error {
	return d.ask(ctx, func() (Output, error) { return d.home.Confirmed(name, deed, d.now()) })
}

// Unconfirmed returns the queues and other names whose home is here and was handed on since
// an admin's last deed, with their generations. Until an admin confirms it a former home can
// take them back.
func (d *Driver) Unconfirmed(ctx context.Context) (map[string]uint64, error) {
	return call(ctx, d, func() map[string]uint64 {
		all := map[string]uint64{}
		for name, t := range d.home.titles.byName {
			if t.known() && t.isHome(d.cfg.Self) && len(t.sinceAdmin()) > 0 {
				all[name] = t.state.Generation
			}
		}
		return all
	})
}

// HandOff gives a queue whose home is here, and all its tasks, to another home. It returns
// once the queue is handed over; its tasks follow.
func (d *Driver) HandOff(ctx context.Context, name string, to proto.PeerID) error {
	return d.ask(ctx, func() (Output, error) { return d.home.HandOff(name, to, d.now()) })
}

// MayMove returns why a queue, or another name, cannot be given to another home now.
func (d *Driver) MayMove(ctx context.Context, name string, to proto.PeerID) error {
	refused, err := call(ctx, d, func() error { return d.home.MayMove(name, to, d.now()) })
	return errors.Join(err, refused)
}

// Seize makes this node the home of a queue whose home is lost, and returns once that is
// durable.
func (d *Driver) Seize(ctx context.Context, name string, from proto.PeerID) error {
	return d.ask(ctx, func() (Output, error) { return d.home.Seize(name, from, d.now()) })
}

// SetClass changes the class of a task, and returns once that is durable. It reports
// whether the task is here and has not ended.
func (d *Driver) SetClass(ctx context.Context, id proto.TaskID, class proto.Class) (known bool, err error) {
	return callHome(ctx, d, func() (bool, Output) { return d.home.SetClass(id, class, d.now()) })
}

// Unblock unblocks a lane of a queue, and returns once that is durable. It reports whether
// a lane here was blocked.
func (d *Driver) Unblock(ctx context.Context, queue, key string) (unblocked bool, err error) {
	return callHome(ctx, d, func() (bool, Output) { return d.home.Unblock(queue, key, d.now()) })
}

// Progress records progress of a running handler. A handler that has reported once must
// keep reporting, or its lease is not renewed. It reports whether there is such a handler.
func (d *Driver) Progress(ctx context.Context, id proto.TaskID) (known bool, err error) {
	return call(ctx, d, func() bool { return d.owner.Progress(id, d.now()) })
}

// Recover reclaims one lease at an operator's request. It reports whether there was one
// that may be reclaimed.
func (d *Driver) Recover(ctx context.Context, id proto.TaskID) (done bool, err error) {
	return callHome(ctx, d, func() (bool, Output) { return d.home.Recover(id, d.now()) })
}
