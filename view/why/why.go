// Package why says what blocks a task, a mail, a peer, a queue or a box of mail: it follows the task from the
// disk of this node to its handler, and states the one cause with what was checked before
// it. It states codes with arguments; the text is made where people read it.
package why

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/view"
	"github.com/balefire/balefire/wire"
)

// An Explainer explains what blocks a task, a mail, a peer, a queue or a box.
type Explainer struct {
	*view.Views
	queues Queues
	mail   Mail
}

// Queues is what is known about shared queues.
type Queues interface {
	Get(ctx context.Context, name string) (wire.Queue, error)
	// HomeGone reports whether a home is lost, and since when.
	HomeGone(home proto.PeerID) (state string, since time.Time, gone bool)
	// LeaseOf returns the only lease of this node, as an owner, whose task has an id that
	// begins with ref.
	LeaseOf(ctx context.Context, ref string) (ownership.LeaseView, bool)
}

// New returns an explainer of what v shows.
func New(v *view.Views, q Queues, m Mail) *Explainer { return &Explainer{v, q, m} }

// idRE matches the id of a task or a mail, or a prefix of one.
var idRE = regexp.MustCompile(`^[0-9A-Fa-f-]{6,36}$`)

// A walk is the way to one cause.
type walk struct {
	*Explainer
	wire.Blocker
}

// step records what was checked.
func (w *walk) step(code wire.NoteCode, a wire.NoteArgs) {
	w.Steps = append(w.Steps, wire.Note{Code: code, NoteArgs: a})
}

// cause sets the one cause.
func (w *walk) cause(code wire.NoteCode, a wire.NoteArgs) {
	w.Cause = wire.Note{Code: code, NoteArgs: a}
}

// next sets the time of the next automatic retry.
func (w *walk) next(in time.Duration) {
	if in > 0 {
		w.Next = new(w.Clock.Now().Add(in).UTC())
	}
}

// Why explains why a task or a mail does not make its next step, or why a peer, a queue
// (queue:NAME) or a box (agent:NAME, topic:NAME) does not get its tasks or mail.
func (e *Explainer) Why(ctx context.Context, subject string) (wire.Blocker, error) {
	w := &walk{Explainer: e, Blocker: wire.Blocker{Subject: subject, Steps: []wire.Note{}}}
	err := w.explain(ctx, subject)
	return w.Blocker, err
}

func (w *walk) explain(ctx context.Context, subject string) error {
	if p, err := w.Book.Find(subject); err == nil {
		w.peer(p)
		return nil
	}
	name, named := proto.QueueOf(subject)
	if !named {
		name = subject
	}
	if w.Leases.QueueStates()[name] != nil || named {
		return w.queue(ctx, name)
	}
	if is, err := w.box(ctx, subject); is {
		return err
	}
	if !idRE.MatchString(subject) {
		return fmt.Errorf("%w: nothing known here has the name %.60q: name a peer, a queue, a mailbox or a topic, or a task or mail by its id or the first 6 characters of it", wire.ErrNotFound, subject)
	}
	id, role, rec, err := w.Find(ctx, subject)
	if errors.Is(err, wire.ErrNotFound) {
		if w.leased(ctx, subject) {
			return nil
		}
		return w.mailed(ctx, subject, err)
	}
	if err != nil {
		return err
	}
	return w.task(ctx, id, role, rec)
}

// task explains the state of a task with a record here.
func (w *walk) task(ctx context.Context, id proto.TaskID, role string, rec *proto.Record) error {
	w.Subject, w.State = id.String(), rec.GetState().Name()
	ended := rec.GetState().Terminal()
	if c := w.ClockDoubt(); c != nil && !ended {
		w.step(wire.NoteClockDoubted, wire.NoteArgs{Clock: c})
	}
	if role == wire.RoleOwner {
		if rec.GetQueue() != "" && !ended {
			w.queued(ctx, id, rec)
		} else if o, err := w.Outbox.WhyResult(id); err == nil {
			w.result(o)
		} else {
			w.owned(id, rec)
		}
		return nil
	}
	o, err := w.Outbox.Why(id)
	if err != nil {
		return err
	}
	ended = o.State.Terminal()
	switch here, err := w.Inbox.Get(id); {
	case err != nil || ended:
	case here.GetQueue() != "": // the home of its queue is here, too
		w.queued(ctx, id, here)
		return nil
	case !here.GetState().Terminal(): // it was sent to this node itself
		w.State = here.GetState().Name()
		w.owned(id, here)
		return nil
	}
	w.home(o, rec.GetTarget())
	if moving := w.Transfers(id); len(moving) > 0 && !ended && (o.Place == "taken" || o.State != proto.Pending) {
		w.cause(wire.NoteTransferring, wire.NoteArgs{Transfer: &moving[0]})
	}
	w.homeless(ctx, o, rec)
	return nil
}

// home explains the state of a task that this node sent.
func (w *walk) home(o outbox.Why, target string) {
	name := w.Book.NameOf(o.Peer)
	there := wire.NoteArgs{Peer: name, Task: w.Subject}
	w.next(o.Next)
	w.step(wire.StepRecord, wire.NoteArgs{State: o.State.Name(), Attempts: o.Attempts, Time: new(o.NotAfter.UTC())})
	switch {
	case o.State.Terminal():
		w.cause(wire.NoteEnded, ended(o))
	case o.State == proto.Accepted || o.State == proto.Running:
		w.step(wire.StepAcceptedThere, wire.NoteArgs{Peer: name})
		queue, queued := proto.QueueOf(target)
		switch {
		case queued:
			there.Queue = queue
			w.cause(wire.NoteGrantsThere, there)
		case o.State == proto.Running:
			w.cause(wire.NoteStartedThere, there)
		default:
			w.cause(wire.NoteRunsThere, there)
		}
	case o.State == proto.Indeterminate && o.Cause == proto.TaskRecordDamaged:
		w.cause(wire.NoteRecordDamaged, there)
	case o.State == proto.Indeterminate:
		w.cause(wire.NoteForgottenThere, there)
	case o.Place == "behind":
		w.behind(o.Behind, o.Held)
	default:
		w.delivery(o)
	}
}

// behind names the task that this one waits for; dead: that one is a dead letter that blocks
// its ordering key.
func (w *walk) behind(first proto.TaskID, dead bool) {
	a := wire.NoteArgs{Task: first.String()}
	if dead {
		a.State = proto.DeadLetter.Name()
	}
	w.cause(wire.NoteBehind, a)
}

// delivery explains why a pending task or result is not delivered to its peer.
func (w *walk) delivery(o outbox.Why) {
	name := w.Book.NameOf(o.Peer)
	known, ok := w.Book.Get(o.Peer)
	switch {
	case o.Peer == w.Self.Peer:
		w.step(wire.StepSelf, wire.NoteArgs{})
	case !ok:
		w.cause(wire.NotePeerUnknown, wire.NoteArgs{Peer: name})
		return
	case w.reach(known).forbidden() || !o.Linked && !w.Net.Connected(o.Peer):
		w.unreachable(w.reach(known)) // a forbidden peer may still be connected for a moment
		return
	default:
		w.step(wire.StepConnected, wire.NoteArgs{Peer: name, Other: w.relayTo(o.Peer)})
		if d := w.Statuses()[o.Peer].Clock; d.Abs() >= proto.ClockNoise {
			w.step(wire.NotePeerClock, wire.NoteArgs{Peer: name, Seconds: d.Round(time.Second).Seconds()})
		}
	}
	to := wire.NoteArgs{Peer: name}
	switch {
	case o.Code != 0:
		w.refused(o, name)
	case ok && w.hangs(w.reach(known)):
	case !o.Linked && o.Peer != w.Self.Peer:
		w.cause(wire.NoteStreamOpening, to)
	case o.Place == "waiting":
		w.cause(wire.NoteNotDue, wire.NoteArgs{})
	case o.Place == "taken":
		w.cause(wire.NoteUnacknowledged, to)
	default:
		w.cause(wire.NoteSentNext, wire.NoteArgs{})
	}
}

// refused explains the refusal of a peer that is connected.
func (w *walk) refused(o outbox.Why, name string) {
	w.step(wire.StepLastAnswer, wire.NoteArgs{Refusal: o.Code.Name(), Detail: o.Detail, Seconds: w.Clock.Now().Sub(o.At).Seconds()})
	code := wire.NoteRefused
	switch {
	case o.Code == proto.CodeClock:
		code = wire.NoteRefusedClock
	case o.Code == proto.CodeCannotStart:
		code = wire.NoteRefusedProgram
	}
	w.cause(code, wire.NoteArgs{Peer: name, Self: w.Self.Name, Kind: o.Kind, Refusal: o.Code.Name(), Detail: o.Detail})
}

// ended states how a task or a result has ended.
func ended(o outbox.Why) wire.NoteArgs {
	a := wire.NoteArgs{State: o.State.Name(), Cause: o.Cause.Name(), Detail: o.Reason}
	if o.Code != 0 {
		a.Refusal = o.Code.Name()
	}
	return a
}

// result explains the state of the result of a task that ran here.
func (w *walk) result(o outbox.Why) {
	name := w.Book.NameOf(o.Peer)
	w.step(wire.StepResultFor, wire.NoteArgs{Peer: name})
	if o.State.Terminal() {
		code := wire.NoteResultRefused
		if o.State == proto.Expired {
			code = wire.NoteResultExpired
		}
		a := ended(o)
		a.Peer, a.Task = name, w.Subject
		w.cause(code, a)
		return
	}
	w.next(o.Next)
	w.delivery(o)
	w.Cause.Result = true
}

// relayTo names the relay between this node and a connected peer, or returns "".
func (w *walk) relayTo(p proto.PeerID) string {
	if s := w.Statuses()[p]; s.Connected && !s.Direct {
		return w.Book.NameOf(s.Relay)
	}
	return ""
}

// owned explains the state of a task that this node accepted.
func (w *walk) owned(id proto.TaskID, rec *proto.Record) {
	where, _ := w.Inbox.Where(id)
	w.step(wire.StepAcceptedHere, wire.NoteArgs{State: w.State, Attempts: int(rec.GetAttempts())})
	w.next(where.Wait)
	kind, st := rec.GetKind(), w.Inbox.Status()
	registered, full := kindUse(kind, w.Inbox.Specs(), st.Kinds)
	switch {
	case rec.GetState().Terminal():
		w.cause(wire.NoteEndedHere, wire.NoteArgs{})
	case !registered:
		origin, _ := w.Book.Identify(rec.GetPeer())
		w.cause(wire.NoteHandlerGone, wire.NoteArgs{Kind: kind, Peer: origin})
	case w.Inbox.Suspended(kind) != "":
		w.cause(wire.NoteProgramMissing, wire.NoteArgs{Detail: w.Inbox.Suspended(kind)})
	case w.Inbox.Unwritten(id) != "":
		w.cause(wire.NoteUnwritten, wire.NoteArgs{Detail: w.Inbox.Unwritten(id)})
	case rec.GetState() == proto.Running || w.hasSlot(id):
		w.cause(wire.NoteRuns, wire.NoteArgs{})
	case where.Status == "behind":
		w.behind(where.Behind, where.Blocked)
	case w.Inbox.WaitsForClock(id):
		origin, _ := w.Book.Identify(rec.GetPeer())
		w.cause(wire.NoteHomeClock, wire.NoteArgs{Peer: origin})
	case where.Wait > 0:
		w.cause(wire.NoteRetryWaits, wire.NoteArgs{Cause: rec.GetCause().Name(), Detail: rec.GetReason()})
	case st.Used >= st.Slots:
		w.cause(wire.NoteSlotsBusy, wire.NoteArgs{Count: st.Used, Of: st.Slots})
	case rec.GetState() == proto.Retrying && !full: // it is due
		w.cause(wire.NoteRetryWaits, wire.NoteArgs{Cause: rec.GetCause().Name(), Detail: rec.GetReason()})
	default:
		w.cause(wire.NoteKindBusy, wire.NoteArgs{})
	}
}

// hasSlot reports whether a task runs here. Its record says so only once its start is
// written, which may be after its handler was called.
func (w *walk) hasSlot(id proto.TaskID) bool {
	return slices.ContainsFunc(w.Inbox.Running(), func(r inbox.RunningTask) bool { return r.ID == id })
}

// kindUse reports whether a kind has a handler, and whether it runs as many tasks as it may.
func kindUse(kind string, specs []inbox.Spec, uses []inbox.KindStatus) (registered, full bool) {
	i := slices.IndexFunc(specs, func(s inbox.Spec) bool { return s.Kind == kind })
	if i < 0 {
		return false, false
	}
	limit := specs[i].Concurrency
	return true, limit > 0 && slices.ContainsFunc(uses, func(k inbox.KindStatus) bool { return k.Kind == kind && k.Running >= limit })
}

// peer explains what blocks a peer.
func (w *walk) peer(known addressbook.Peer) {
	p := w.PeerView(known, w.Statuses()[known.Peer])
	w.Subject, w.State = p.Name, p.State
	w.step(wire.StepOutbox, wire.NoteArgs{Count: p.Queued})
	r := w.reach(known)
	switch {
	case p.State == "CONNECTED":
		w.Steps = append(w.Steps, r.steps()...)
		if !w.hangs(r) {
			w.cause(wire.NotePeerConnected, wire.NoteArgs{Path: p.Path, Seconds: r.ago(r.dial.LastSeen)})
		}
	case p.State == "EXPIRED" && r.dial.Refused == nil:
		code := wire.NoteCertExpired
		if r.now.After(known.Member.NotAfter.Add(identity.MemberGrace)) {
			code = wire.NoteCertExpiredBeyond
		}
		w.cause(code, wire.NoteArgs{Peer: p.Name})
	default:
		w.unreachable(r)
	}
}
