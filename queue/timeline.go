package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// The limits of a query to other nodes.
const (
	timelineLines       = proto.MaxGroup  // events of one node
	timelineTimeout     = 3 * time.Second // timeout for the answers
	maxTimelineRequests = 64              // limit of open queries
)

// Timeline merges the events of this node and of all connected members about the leases
// of a task or of a queue. Each node keeps only the newest events of its current start.
func (qs *Queues) Timeline(ctx context.Context, q wire.TimelineQuery) (wire.Timeline, error) {
	ask := &proto.TimelineAsk{Queue: q.Queue, Limit: timelineLines}
	switch {
	case (q.Task == "") == (q.Queue == ""):
		return wire.Timeline{}, fmt.Errorf("%w: name either one task or one queue for a timeline", wire.ErrInvalid)
	case q.Task != "":
		id, err := qs.resolveTask(ctx, q.Task)
		if err != nil {
			return wire.Timeline{}, err
		}
		ask.Task = id[:]
	default:
		if _, err := qs.HomeOf(q.Queue); err != nil {
			return wire.Timeline{}, err
		}
	}
	own := qs.events.reply(ask)
	t := wire.Timeline{Items: []wire.TimelineEvent{}, Asked: []string{qs.parts.Book.NameOf(qs.self)}, Silent: []string{}, More: own.GetMore()}
	t.Items = append(t.Items, qs.timelineOf(qs.parts.Book.NameOf(qs.self), own)...)
	replies, silent := qs.askMembers(ctx, ask)
	for p, r := range replies {
		t.Asked = append(t.Asked, qs.parts.Book.NameOf(p))
		t.Items = append(t.Items, qs.timelineOf(qs.parts.Book.NameOf(p), r)...)
		t.More = t.More || r.GetMore()
	}
	for _, p := range silent {
		t.Silent = append(t.Silent, qs.parts.Book.NameOf(p))
	}
	slices.Sort(t.Asked[1:])
	slices.Sort(t.Silent)
	slices.SortStableFunc(t.Items, func(a, b wire.TimelineEvent) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Number, b.Number))
	})
	return t, nil
}

// resolveTask resolves a reference to a task. A complete id need not be known here.
func (qs *Queues) resolveTask(ctx context.Context, ref string) (proto.TaskID, error) {
	if id, err := proto.ParseTaskID(ref); err == nil {
		return id, nil
	}
	if v, ok := qs.LeaseOf(ctx, ref); ok {
		return v.Task, nil
	}
	id, _, _, err := qs.parts.Tasks.Find(ctx, ref)
	return id, err
}

// timelineOf converts a node's answer for the API.
func (qs *Queues) timelineOf(name string, r *proto.TimelineReply) (out []wire.TimelineEvent) {
	for _, l := range r.GetLines() {
		e := wire.OwnershipEvent{Number: l.GetNumber(), Time: proto.Time(l.GetTimeMs()), Kind: l.GetKind(), Queue: l.GetQueue(), State: l.GetState(), Code: l.GetCode(), Cause: wire.LeaseCause(l.GetCause()), Detail: l.GetDetail()}
		if id, err := proto.TaskIDFrom(l.GetTask()); err == nil {
			e.Task = id.String()
		}
		if l.GetEpochBoot() > 0 {
			e.Epoch = proto.Seq{Boot: l.GetEpochBoot(), Counter: l.GetEpochCounter()}.String()
		}
		e.Peer, e.PeerID = qs.parts.Book.Identify(l.GetPeer())
		out = append(out, wire.TimelineEvent{Node: name, OwnershipEvent: e})
	}
	return out
}

// reply answers a query from the events in memory.
func (l *eventLog) reply(ask *proto.TimelineAsk) *proto.TimelineReply {
	r := &proto.TimelineReply{Number: ask.GetNumber()}
	limit := min(int(ask.GetLimit()), timelineLines)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range slices.Backward(l.lines) {
		if string(x.event.Task[:]) != string(ask.GetTask()) && (len(ask.GetTask()) > 0 || ask.GetQueue() == "" || x.event.Queue != ask.GetQueue()) {
			continue
		}
		if len(r.Lines) >= limit {
			r.More = true
			break
		}
		r.Lines = append(r.Lines, x.line())
	}
	slices.Reverse(r.Lines)
	return r
}

// A loggedEvent is an event of the timeline in memory.
type loggedEvent struct {
	number uint64
	time   time.Time
	event  ownership.Event
}

func (k *loggedEvent) line() *proto.TimelineLine {
	e := &k.event
	l := &proto.TimelineLine{
		Number: k.number, TimeMs: k.time.UnixMilli(), Kind: e.Kind.String(), Queue: e.Queue,
		EpochBoot: e.Epoch.Boot, EpochCounter: e.Epoch.Counter,
		Cause: string(e.Cause), Detail: proto.Clip(e.Detail, 128),
	}
	l.State, l.Code = stateAndCode(e)
	if !e.Task.IsZero() {
		l.Task = e.Task[:]
	}
	if !e.Peer.IsZero() {
		l.Peer = e.Peer[:]
	}
	return l
}

// timelineRequests holds the queries of this node that wait for answers.
type timelineRequests struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]*timelineRequest
}

type timelineRequest struct {
	missing map[proto.PeerID]bool
	replies map[proto.PeerID]*proto.TimelineReply
	done    chan struct{} // closed when no answer is missing
}

// askMembers sends a query to every connected member and waits for their answers.
func (qs *Queues) askMembers(ctx context.Context, ask *proto.TimelineAsk) (replies map[proto.PeerID]*proto.TimelineReply, silent []proto.PeerID) {
	tr, q := &qs.timelines, &timelineRequest{missing: map[proto.PeerID]bool{}, replies: map[proto.PeerID]*proto.TimelineReply{}, done: make(chan struct{})}
	for _, s := range qs.net.Peers() {
		if _, member := qs.parts.Book.Member(s.Peer); member && s.Linked {
			q.missing[s.Peer] = true
		} else if member {
			silent = append(silent, s.Peer)
		}
	}
	members := make([]proto.PeerID, 0, len(q.missing))
	for p := range q.missing {
		members = append(members, p)
	}
	number, ok := tr.begin(q)
	if !ok || len(members) == 0 {
		return nil, append(silent, members...)
	}
	defer tr.end(number)
	ask.Number = number
	for _, p := range members {
		qs.Post(p, proto.TypeTimeline, ask)
	}
	timer := time.NewTimer(timelineTimeout)
	defer timer.Stop()
	select {
	case <-q.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for p := range q.missing {
		silent = append(silent, p)
	}
	return q.replies, silent
}

func (tr *timelineRequests) begin(q *timelineRequest) (uint64, bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.open) >= maxTimelineRequests {
		return 0, false
	}
	if tr.open == nil {
		tr.open = map[uint64]*timelineRequest{}
	}
	tr.last++
	tr.open[tr.last] = q
	return tr.last, true
}

func (tr *timelineRequests) end(number uint64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	delete(tr.open, number)
}

// answered processes a reply. It drops one that is no longer awaited.
func (tr *timelineRequests) answered(from proto.PeerID, r *proto.TimelineReply) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	q := tr.open[r.GetNumber()]
	if q == nil || !q.missing[from] {
		return
	}
	delete(q.missing, from)
	q.replies[from] = r
	if len(q.missing) == 0 {
		close(q.done)
	}
}

// receiveTimeline answers the query of a member, or processes the answer of one.
func (qs *Queues) receiveTimeline(from proto.PeerID, m *proto.Message) error {
	if m.GetType() == proto.TypeTimelineReply {
		r := new(proto.TimelineReply)
		if err := proto.DecodeKnown(m.GetPayload(), r); err != nil {
			return err
		}
		qs.timelines.answered(from, r)
		return nil
	}
	ask := new(proto.TimelineAsk)
	if err := proto.DecodeKnown(m.GetPayload(), ask); err != nil {
		return err
	}
	qs.Post(from, proto.TypeTimelineReply, qs.events.reply(ask))
	return nil
}
