package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// idRE matches a task id or a prefix of one.
var idRE = regexp.MustCompile(`^[0-9A-Fa-f-]{6,36}$`)

// Why explains why a task does not make its next step, or why a peer or a queue
// (queue:NAME) does not get its tasks, and what to do about it.
func (n *Node) Why(ctx context.Context, subject string) (wire.Blocker, error) {
	if p, err := n.book.Find(subject); err == nil {
		return n.whyPeer(ctx, p.Label())
	}
	if name, ok := strings.CutPrefix(subject, proto.QueuePrefix); ok {
		return n.whyQueue(ctx, name)
	}
	if _, ok := n.queues.Driver.QueueStates()[subject]; ok {
		return n.whyQueue(ctx, subject)
	}
	if !idRE.MatchString(subject) {
		return wire.Blocker{}, fmt.Errorf("%w: nothing known here has the name %.60q: name a peer, a queue, or a task by its id or the first 6 characters of it", wire.ErrNotFound, subject)
	}
	id, role, rec, err := n.Find(subject)
	if errors.Is(err, wire.ErrNotFound) {
		if b, ok := n.whyLeased(ctx, subject); ok {
			return b, nil
		}
	}
	if err != nil {
		return wire.Blocker{}, err
	}
	b := wire.Blocker{Subject: id.String(), State: rec.GetState().Name()}
	if c := n.guard.State(); c.Doubted && !rec.GetState().Terminal() {
		b.Steps = append(b.Steps, doubtText(c))
	}
	if role == wire.RoleOwner && rec.GetQueue() != "" && !rec.GetState().Terminal() {
		return n.whyQueued(ctx, b, id, rec), nil
	}
	if w, err := n.outbox.WhyResult(id); role == wire.RoleOwner && err == nil {
		return n.whyResult(b, w), nil
	}
	if role == wire.RoleOwner {
		return n.whyOwned(b, id, rec), nil
	}
	w, err := n.outbox.Why(id)
	if err != nil {
		return wire.Blocker{}, err
	}
	if queued, err := n.inbox.Get(id); err == nil && queued.GetQueue() != "" && !w.State.Terminal() {
		return n.whyQueued(ctx, b, id, queued), nil // the home of its queue is here, too
	}
	n.whyHome(&b, w, rec.GetTarget())
	if moving := n.Transfers(id); len(moving) > 0 && !w.State.Terminal() && (w.Place == "taken" || w.State != proto.Pending) {
		b.Cause, b.Fix = moving[0].String(), ""
	}
	n.whyHomeless(ctx, &b, w, rec)
	return b, nil
}

func (n *Node) whyHome(b *wire.Blocker, w outbox.Why, target string) {
	name, _ := n.peerNameID(w.Peer[:])
	step := func(format string, a ...any) { b.Steps = append(b.Steps, fmt.Sprintf(format, a...)) }
	set := func(cause, fix string) { b.Cause, b.Fix = cause, fix }
	if w.Next > 0 {
		b.Next = new(n.cfg.Clock.Now().Add(w.Next).UTC())
	}
	step("record: %s, attempts %d, expires at %s", w.State.Name(), w.Attempts, w.NotAfter.UTC().Format(time.RFC3339))
	switch {
	case w.State.Terminal():
		set("it has ended: "+cmp.Or(w.Reason, w.State.Name()), fixEnded(w.State))
		return
	case w.State == proto.Accepted || w.State == proto.Running:
		step("accepted: %s has it (receipt accepted)", name)
		does := "runs it when a slot is free"
		if queue, queued := strings.CutPrefix(target, proto.QueuePrefix); queued {
			does = "grants it to a free node, as the home of queue " + queue
		}
		set(fmt.Sprintf("%s has it and %s; its result has not arrived yet", name, does), fmt.Sprintf("on %s: balefire-node why %s", name, b.Subject))
		return
	case w.State == proto.Indeterminate:
		set(fmt.Sprintf("%s had accepted it and no longer knows it: it may have run there, and its mode is at_most_once", name), "check whether it ran; balefire-node task cancel "+b.Subject+", and task retry if it did not")
		return
	case w.Place == "behind":
		set(fmt.Sprintf("it waits behind %s, which has the same ordering key", w.Behind), "balefire-node why "+w.Behind.String())
		return
	}
	n.whyDelivery(b, w, name, step, set)
}

// whyDelivery explains why a pending task is not delivered to its peer.
func (n *Node) whyDelivery(b *wire.Blocker, w outbox.Why, name string, step func(string, ...any), set func(cause, fix string)) {
	p, known := n.book.Get(w.Peer)
	switch {
	case w.Peer == n.keys.Peer():
		step("peer: this node itself")
	case !known:
		set(name+" is not in the address book", "pair with it again: invite and join")
		return
	case !w.Linked && !n.net.Connected(w.Peer):
		a := n.unreachable(p)
		b.Steps = append(b.Steps, a.steps()...)
		if b.Next == nil && a.redials() {
			b.Next = new(a.now.Add(a.dial.NextDial).UTC())
		}
		set(a.blocker())
		return
	default:
		step("path: connected with %s%s", name, n.viaRelay(w.Peer))
	}
	switch {
	case w.Code != 0:
		step("last answer: %s %s, %s ago", w.Code.Name(), w.Detail, n.cfg.Clock.Now().Sub(w.At).Round(time.Second))
		set(fmt.Sprintf("%s refused it: %s (%s)", name, w.Code.Name(), w.Detail), fixRefused(w.Code, w.Detail, name, w.Kind, n.self.Name))
	case n.hangs(w.Peer, set):
	case !w.Linked && w.Peer != n.keys.Peer():
		set("the task stream to "+name+" is being opened", "balefire-node path "+name)
	case w.Place == "waiting":
		set("it is not due yet", "")
	case w.Place == "taken":
		set("it was sent to "+name+" and is not acknowledged yet", "")
	default:
		set("it is sent next", "")
	}
}

// hangs reports whether gossip considers a connected peer unreachable, and sets the
// cause.
func (n *Node) hangs(p proto.PeerID, set func(cause, fix string)) bool {
	known, ok := n.book.Get(p)
	if !ok {
		return false
	}
	cause, fix := n.unreachable(known).hanging()
	if cause != "" {
		set(cause, fix)
	}
	return cause != ""
}

// whyResult explains the state of the result of a task that ran here.
func (n *Node) whyResult(b wire.Blocker, w outbox.Why) wire.Blocker {
	name, _ := n.peerNameID(w.Peer[:])
	b.Steps = append(b.Steps, "accepted: it ended here; its result is for "+name)
	if w.State.Terminal() {
		b.Cause = fmt.Sprintf("%s permanently refused its result: %s", name, w.Reason)
		b.Fix = "check the task on " + name + ": balefire-node why " + b.Subject
		return b
	}
	if w.Next > 0 {
		b.Next = new(n.cfg.Clock.Now().Add(w.Next).UTC())
	}
	step := func(format string, a ...any) { b.Steps = append(b.Steps, fmt.Sprintf(format, a...)) }
	set := func(cause, fix string) { b.Cause, b.Fix = "it has ended here; its result: "+cause, fix }
	n.whyDelivery(&b, w, name, step, set)
	return b
}

// viaRelay names the relay between this node and a connected peer, or returns "".
func (n *Node) viaRelay(p proto.PeerID) string {
	if s := n.Statuses()[p]; s.Connected && !s.Direct {
		return " through the relay " + n.peerName(s.Relay)
	}
	return ""
}

func fixRefused(c proto.Code, detail, name, kind, self string) string {
	switch c {
	case proto.CodeBusy:
		if strings.Contains(detail, "compare the clocks") {
			return "correct the clocks of this machine and of " + name
		}
	case proto.CodeNoHandler:
		if strings.HasPrefix(detail, "its handler cannot be started") {
			return "install the program on " + name + ", or correct the handler there"
		}
		return "on " + name + ": balefire-node handler add " + kind + " --allow " + self + " -- PROGRAM"
	case proto.CodeFull:
		return "free disk space or finish work on " + name
	case proto.CodeDraining:
		return "it is sent automatically when " + name + " has restarted"
	}
	return ""
}

func fixEnded(s proto.TaskState) string {
	if s == proto.DeadLetter || s == proto.Failed || s == proto.Timeout {
		return "fix the cause, then: balefire-node task retry ID"
	}
	return ""
}

// whyOwned explains the state of a task that this node accepted.
func (n *Node) whyOwned(b wire.Blocker, id proto.TaskID, rec *proto.Record) wire.Blocker {
	where, _ := n.inbox.Where(id)
	b.Steps = append(b.Steps, fmt.Sprintf("accepted: here, %s, attempts %d", b.State, rec.GetAttempts()))
	if where.Wait > 0 {
		b.Next = new(n.cfg.Clock.Now().Add(where.Wait).UTC())
	}
	registered := false
	for _, s := range n.inbox.Specs() {
		registered = registered || s.Kind == rec.GetKind()
	}
	st := n.inbox.Status()
	switch {
	case rec.GetState().Terminal():
		b.Cause = "it has ended here; its result is being sent to its home or is there"
	case !registered:
		b.Cause, b.Fix = "the handler for kind "+rec.GetKind()+" is no longer registered", fmt.Sprintf("balefire-node handler add %s --allow %s -- PROGRAM", rec.GetKind(), n.originName(rec))
	case n.inbox.Suspended(rec.GetKind()) != "":
		b.Cause = "its handler cannot be started: " + n.inbox.Suspended(rec.GetKind())
	case n.inbox.Unwritten(id) != "":
		b.Cause, b.Fix = "its handler has ended, but its end cannot be stored: "+n.inbox.Unwritten(id), "free disk space on this machine"
	case rec.GetState() == proto.Running:
		b.Cause = "its handler is running"
	case where.Status == "behind":
		b.Cause = "it waits behind " + where.Behind.String() + ", which has the same ordering key"
	case where.Wait > 0:
		b.Cause = "the last attempt failed: " + cmp.Or(rec.GetReason(), "no reason given") + "; it waits for the next one"
	case st.Used >= st.Slots:
		b.Cause, b.Fix = fmt.Sprintf("all %d slots are busy", st.Slots), "wait, or raise limits.slots"
	default:
		b.Cause = "it waits for a slot of its kind"
	}
	return b
}

// originName returns the name of the sender of an accepted task.
func (n *Node) originName(rec *proto.Record) string {
	name, _ := n.peerNameID(rec.GetPeer())
	return name
}

func (n *Node) whyPeer(ctx context.Context, name string) (wire.Blocker, error) {
	p, err := n.Peer(ctx, name)
	if err != nil {
		return wire.Blocker{}, err
	}
	known, err := n.findPeer(name)
	if err != nil {
		return wire.Blocker{}, err
	}
	b := wire.Blocker{Subject: p.Name, State: p.State, Steps: []string{fmt.Sprintf("outbox: %d entries wait for it", p.Queued)}}
	a := n.unreachable(known)
	switch p.State {
	case "CONNECTED":
		b.Steps = append(b.Steps, a.steps()...)
		if b.Cause, b.Fix = a.hanging(); b.Cause == "" {
			b.Cause = fmt.Sprintf("nothing: it is connected by %s and was last seen %s ago", p.Path, a.ago(a.dial.LastSeen))
		}
	case "EXPIRED":
		b.Cause, b.Fix = "its certificate has expired", "start a node with the role admin, which renews it"
		if n.cfg.Clock.Now().After(known.Member.NotAfter.Add(identity.MemberGrace)) {
			b.Fix = "invite it again"
		}
	default:
		b.Steps = append(b.Steps, a.steps()...)
		if a.redials() {
			b.Next = new(a.now.Add(a.dial.NextDial).UTC())
		}
		b.Cause, b.Fix = a.blocker()
	}
	return b, nil
}
