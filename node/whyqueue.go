package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// whyQueue explains why a shared queue does not get its tasks done.
func (n *Node) whyQueue(ctx context.Context, name string) (wire.Blocker, error) {
	q, err := n.Queue(ctx, name)
	if err != nil {
		return wire.Blocker{}, err
	}
	b := wire.Blocker{Subject: proto.QueuePrefix + name, State: "OPEN", Steps: []string{fmt.Sprintf("home: %s, generation %d", q.Home, q.Generation)}}
	if q.Here {
		b.Steps = append(b.Steps, fmt.Sprintf("tasks: %d waiting, %d granted", q.Waiting, q.Owned))
	}
	able := 0
	for _, m := range q.Members {
		if m.Alive && !m.Draining {
			able++
		}
	}
	switch {
	case q.Alarm != nil:
		b.State, b.Cause, b.Fix = "HOMELESS", q.Alarm.Text, q.Alarm.Fix
	case q.Paused:
		b.State, b.Cause, b.Fix = "PAUSED", "it was paused by an operator", "on "+q.Home+": balefire-node queue resume "+name
	case !q.Here && n.whyHomeUnreachable(&b, name):
	case !q.Here:
		b.Cause, b.Fix = "nothing known here: only its home knows which tasks wait", "on "+q.Home+": balefire-node why queue:"+name
	case n.gossip.SelfPaused():
		b.Cause, b.Fix = "this node considers itself isolated: it "+n.PauseReason()+", and grants only to itself", "balefire-node netcheck"
	case q.Waiting == 0:
		b.Cause = "nothing waits"
	case able == 0:
		b.Cause, b.Fix = "no live member works on it", "balefire-node queue members "+name
	default:
		b.Cause, b.Fix = "its members are busy or serve other kinds, or a limit is reached", "balefire-node queue show "+name+", and balefire-node why TASK for one that waits"
	}
	return b, nil
}

// whyLeft explains the state of a task stored here whose home is no longer this node.
func (n *Node) whyLeft(ctx context.Context, b wire.Blocker, id proto.TaskID) wire.Blocker {
	past, known, err := n.queues.Driver.FormerTask(ctx, id)
	home := n.peerName(past.Peer)
	switch {
	case err != nil || !known || past.State.Terminal():
		b.Cause = "its end is being stored"
	case past.Refused != "":
		b.Steps = append(b.Steps, "handoff: moving to "+home)
		b.Cause, b.Fix = fmt.Sprintf("its queue moved to %s, which refuses the task: %s", home, past.Refused), "balefire-node path "+home
		if strings.HasPrefix(past.Refused, proto.CodeFull.Name()) {
			b.Fix = "free disk space or finish work on " + home
		}
	case past.Going && !n.net.Connected(past.Peer):
		b.Cause, b.Fix = fmt.Sprintf("its queue moved to %s, which is not connected: the task follows when it is", home), "balefire-node path "+home
	case past.Going:
		b.Cause = fmt.Sprintf("its queue moved to %s, and the task is following", home)
	default:
		b.Cause, b.Fix = "it moved to "+home+" with its queue", "on "+home+": balefire-node why "+b.Subject
	}
	return b
}

// whyHomeUnreachable explains why this node does not reach the home of a queue; it
// returns false if the home is connected.
func (n *Node) whyHomeUnreachable(b *wire.Blocker, name string) bool {
	home, err := n.queues.HomeOf(name)
	p, known := n.book.Get(home)
	if err != nil || !known || n.net.Connected(home) {
		return false
	}
	a := n.unreachable(p)
	b.Steps = append(b.Steps, a.steps()...)
	b.Cause, b.Fix = a.blocker()
	return true
}

// whyHomeless replaces the cause with the alarm of the task's queue if the home that has
// the task, or should have it, is lost.
func (n *Node) whyHomeless(ctx context.Context, b *wire.Blocker, w outbox.Why, rec *proto.Record) {
	name, queued := strings.CutPrefix(rec.GetTarget(), proto.QueuePrefix)
	s := n.queues.Driver.QueueStates()[name]
	if !queued || s == nil || w.State.Terminal() {
		return
	}
	if string(s.GetHome()) == string(w.Peer[:]) {
		if a := n.queues.Alarm(ctx, s); a != nil {
			b.Steps = append(b.Steps, fmt.Sprintf("queue %s: home %s, %s", name, a.Home, strings.ToLower(a.State)))
			b.Cause, b.Fix = a.Text, a.Fix
			return
		}
		if owner := n.runsOn(rec); owner != "" {
			b.Steps = append(b.Steps, fmt.Sprintf("lease: %s has reported its start", owner))
			b.Cause, b.Fix = owner+" runs it; its result has not arrived yet", "on "+owner+": balefire-node why "+b.Subject
		}
		return
	}
	if _, _, gone := n.queues.HomeGone(w.Peer); gone {
		old, home := n.peerName(w.Peer), n.peerName(proto.PeerID(s.GetHome()))
		b.Steps = append(b.Steps, fmt.Sprintf("queue %s: current home %s, generation %d", name, home, s.GetGeneration()))
		b.Cause = fmt.Sprintf("it was sent to %s, which was the home of queue %s before %s and is lost: ", old, name, home)
		if self := n.keys.Peer(); string(s.GetHome()) == string(self[:]) {
			b.Cause, b.Fix = b.Cause+"it was not handed over and will follow when "+old+" is back", "start "+old+" again"
			return
		}
		b.Cause += fmt.Sprintf("%s has it if it was handed over; otherwise it will follow when %s is back", home, old)
		b.Fix = "on " + home + ": balefire-node why " + b.Subject
	}
}

// runsOn returns the name of the owner that runs a task, as far as its origin knows.
func (n *Node) runsOn(rec *proto.Record) string {
	if rec.GetState() != proto.Running {
		return ""
	}
	for _, e := range slices.Backward(rec.GetEvents()) {
		if e.GetState() == proto.Running {
			name, _ := n.peerNameID(e.GetNode())
			return name
		}
	}
	return ""
}

// whyLeased explains the state of a task for which this node has only a lease.
func (n *Node) whyLeased(ctx context.Context, ref string) (wire.Blocker, bool) {
	v, ok := n.queues.LeaseOf(ctx, ref)
	if !ok {
		return wire.Blocker{}, false
	}
	home := n.peerName(v.Peer)
	b := wire.Blocker{Subject: v.Task.String(), State: v.State, Steps: []string{
		fmt.Sprintf("queue %s: home %s", v.Queue, home),
		fmt.Sprintf("lease: epoch %s, attempt %d, held by this node", v.Epoch.String(), v.Attempts),
	}}
	alarm := n.queues.Alarm(ctx, n.queues.Driver.QueueStates()[v.Queue])
	_, _, gone := n.queues.HomeGone(v.Peer)
	st := n.inbox.Status()
	switch {
	case v.State == proto.LeaseStarted.Name() && v.Lapsed:
		b.Cause, b.Fix = "its handler is running; its lease could not be renewed, so its result counts only if the task was not granted to another node", "balefire-node path "+home
	case v.State == proto.LeaseStarted.Name():
		b.Cause = "its handler is running"
	case v.State == proto.LeaseReceived.Name() && v.Fetching:
		b.Cause, b.Fix = "its large body is being transferred from "+home, "balefire-node path "+home
	case v.State == proto.LeaseReceived.Name():
		b.Cause = fmt.Sprintf("it waits for a slot: %d of %d are busy", st.Used, st.Slots)
	case v.Unknown:
		b.Cause = fmt.Sprintf("its result is stored here, but its home %s does not know the task: the home may have been restored from an older copy; the result is kept until a day after the task expires", home)
	case alarm != nil:
		b.Cause, b.Fix = "its result is stored here for its home: "+alarm.Text, alarm.Fix
	case gone:
		b.Cause, b.Fix = fmt.Sprintf("its result is stored here for %s, which is lost", home), "balefire-node peers show "+home
	default:
		b.Cause = "its result was sent to " + home + ", which has not answered yet"
	}
	return b, true
}

// whyQueued explains the state of a task of a queue whose home is this node.
func (n *Node) whyQueued(ctx context.Context, b wire.Blocker, id proto.TaskID, rec *proto.Record) wire.Blocker {
	v, known, err := n.queues.Driver.Task(ctx, id)
	if err != nil || !known {
		return n.whyLeft(ctx, b, id)
	}
	owner, _ := n.peerNameID(v.Peer[:])
	b.Steps = append(b.Steps, fmt.Sprintf("queue %s: home here, state %s, %d attempts, %d leases lost", rec.GetQueue(), v.State, v.Attempts, v.Abandons))
	if n := len(v.Grants); n > 0 {
		b.Steps = append(b.Steps, fmt.Sprintf("lease: epoch %s, %s", v.Epoch.String(), owner))
	}
	switch {
	case v.Leased:
		b.Cause, b.Fix = fmt.Sprintf("%s has the lease; its result has not arrived yet", owner), "on "+owner+": balefire-node why "+b.Subject
		b.Next = new(n.cfg.Clock.Now().Add(v.Left).UTC())
	case v.State == proto.Running.Name() || v.State == proto.Indeterminate.Name():
		b.Cause = fmt.Sprintf("%s may have started it, it must not start twice, and %s does not answer", owner, owner)
	case v.Paused:
		b.Cause, b.Fix = "the queue is paused", "balefire-node queue resume "+rec.GetQueue()
	case !v.Active:
		b.Cause, b.Fix = "this node considers itself isolated: it "+n.PauseReason()+", and grants only to itself", "balefire-node netcheck"
	case v.Blocked:
		b.Cause = "an earlier task with the same ordering key is a dead letter, and on_dead is block"
		b.Fix = fmt.Sprintf("balefire-node queue unblock %s %s", rec.GetQueue(), rec.GetOrderingKey())
	case !v.AtHead:
		b.Cause = "an earlier task with the same ordering key has not ended"
	case v.Due > 0:
		b.Cause, b.Next = "the last attempt failed: "+cmp.Or(v.Reason, "no reason given")+"; it waits for the next one", new(n.cfg.Clock.Now().Add(v.Due).UTC())
	case v.Serving == 0:
		b.Cause, b.Fix = "no live member serves kind "+rec.GetKind(), "balefire-node handler add "+rec.GetKind()+" on a node that should"
		if len(rec.GetRequire()) > 0 {
			b.Cause, b.Fix = b.Cause+" and has the labels "+strings.Join(rec.GetRequire(), ", "), "set mesh.labels on a node that should, or "+b.Fix
		}
	case v.Available == 0 && v.BackedOff > 0:
		b.Cause = fmt.Sprintf("%d of %d members that serve its kind refused it recently: %s", v.BackedOff, v.Serving, lastGrant(v.Grants))
	case v.Available == 0:
		b.Cause, b.Fix = fmt.Sprintf("all %d members that serve its kind are busy, or a limit of the queue is reached", v.Serving), "balefire-node queue show "+rec.GetQueue()
	default:
		b.Cause = "it is granted next"
	}
	return b
}

func lastGrant(grants []*proto.Granting) string {
	if n := len(grants); n > 0 {
		return cmp.Or(grants[n-1].GetEnded(), "no answer")
	}
	return "no answer"
}
