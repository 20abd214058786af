package queue

import (
	"cmp"
	"context"
	"encoding/hex"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Conflicts lists the newest rejected claims, oldest first.
func (qs *Queues) Conflicts() []wire.LeaseConflict {
	l := qs.events
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]wire.LeaseConflict{}, l.conflicts...)
}

// Events returns up to limit events with a number above after, oldest first.
func (qs *Queues) Events(after uint64, limit int) []wire.OwnershipEvent {
	l := qs.events
	l.mu.Lock()
	defer l.mu.Unlock()
	at, _ := slices.BinarySearchFunc(l.lines, after+1, func(k loggedEvent, n uint64) int { return cmp.Compare(k.number, n) })
	out := []wire.OwnershipEvent{}
	for _, k := range l.lines[at:min(len(l.lines), at+max(limit, 0))] {
		out = append(out, l.view(k))
	}
	return out
}

// An eventLog keeps the newest ownership events and conflicts in memory.
type eventLog struct {
	queues   *Queues
	count    *prometheus.CounterVec
	sent     *prometheus.CounterVec
	refusals *prometheus.CounterVec

	mu          sync.Mutex
	last        uint64
	lines       []loggedEvent
	jumpedAt    time.Time // latest time that no lease was revoked because the clocks had jumped
	lastRefused string    // queue, home and cause of the refused handoff logged last
	conflicts   []wire.LeaseConflict
}

const (
	maxEvents    = 4096
	maxConflicts = 512
)

func newEventLog(qs *Queues) *eventLog {
	l := &eventLog{queues: qs, count: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "balefire_ownership_events_total", Help: "Events of the leases that this node granted or owns, by kind.",
	}, []string{"kind"}), sent: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "balefire_ownership_messages_total", Help: "Ownership messages sent by this node, by type.",
	}, []string{"type"}), refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "balefire_ownership_refused_total", Help: "Ownership messages rejected because they were damaged or not signed by an authorized node, by type.",
	}, []string{"type"})}
	qs.cfg.Registerer.MustRegister(l.count, l.sent, l.refusals)
	return l
}

// appendBounded appends to a list and drops the older half when the list is full.
func appendBounded[T any](list []T, x T, most int) []T {
	if len(list) >= most {
		list = append(list[:0:0], list[len(list)-most/2:]...)
	}
	return append(list, x)
}

// view converts an event for the API.
func (l *eventLog) view(k loggedEvent) wire.OwnershipEvent {
	e := k.event
	x := wire.OwnershipEvent{Number: k.number, Time: k.time, Kind: e.Kind.String(), Queue: e.Queue, Epoch: e.Epoch.String(), Cause: e.Cause, Detail: e.Detail}
	x.State, x.Code = stateAndCode(&e)
	if !e.Task.IsZero() {
		x.Task = e.Task.String()
	}
	if !e.Peer.IsZero() {
		x.Peer, x.PeerID = l.queues.parts.Book.Identify(e.Peer[:])
	}
	return x
}

// stateAndCode returns the names of the state and the refusal in an event; empty: it has none.
func stateAndCode(e *ownership.Event) (state, code string) {
	if e.State != proto.StateUnspecified {
		state = e.State.Name()
	}
	if e.Code != proto.CodeOK {
		code = e.Code.Name()
	}
	return state, code
}

// logLease logs an event of a task at debug level: grants show how a task is dispatched,
// and lapses how it is reclaimed. What is not known here is left out. The keys are stable.
func (l *eventLog) logLease(x wire.OwnershipEvent, e ownership.Event) {
	log := l.queues.cfg.Logger
	if x.Task == "" || !log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	said := slices.DeleteFunc([]string{x.State, x.Code, string(x.Cause), x.Detail}, func(s string) bool { return s == "" })
	attrs := []slog.Attr{
		slog.String("event", "lease."+x.Kind), slog.String("task_id", x.Task), slog.String("queue", x.Queue),
		slog.String("peer", x.Peer), slog.String("epoch", x.Epoch), slog.String("err", strings.Join(said, ": ")),
	}
	if e.TaskKind != "" {
		attrs = append(attrs, slog.String("kind", e.TaskKind), slog.String("class", strings.ToLower(e.Class.Name())))
	}
	if e.Attempt > 0 {
		attrs = append(attrs, slog.Uint64("attempt", uint64(e.Attempt)))
	}
	log.LogAttrs(context.Background(), slog.LevelDebug, "lease", attrs...)
}

// tell reports an event for operators.
func (l *eventLog) tell(p proto.PeerID, x wire.OwnershipEvent) {
	l.queues.cfg.Event("ownership."+x.Kind, p, map[string]string{"task": x.Task, "queue": x.Queue, "state": x.State, "code": x.Code, "cause": string(x.Cause), "detail": x.Detail})
}

// add records events that have become durable.
func (l *eventLog) add(all []ownership.Event) {
	now := l.queues.cfg.Clock.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range all {
		l.count.WithLabelValues(e.Kind.String()).Inc()
		if e.Kind == ownership.EventIgnored {
			continue // late copies are frequent and of no interest
		}
		l.last++
		k := loggedEvent{l.last, now, e}
		l.lines = appendBounded(l.lines, k, maxEvents)
		x := l.view(k)
		l.logLease(x, e)
		if e.Kind == ownership.EventSkipped {
			l.jumpedAt = now
		}
		switch e.Kind {
		case ownership.EventConflict:
			l.conflicts = appendBounded(l.conflicts, wire.LeaseConflict{
				Time: now, Task: x.Task, Queue: x.Queue, Peer: x.Peer, PeerID: x.PeerID, Epoch: x.Epoch, Cause: x.Cause,
			}, maxConflicts)
		case ownership.EventNotTaken:
			if why := x.Queue + x.PeerID + x.Code + x.Detail; l.lastRefused != why { // many tasks may be refused for the same reason
				l.lastRefused = why
				l.queues.cfg.Logger.Warn("the new home of a queue refuses its tasks; they will be sent again", "queue", x.Queue, "home", x.Peer, "task", x.Task, "code", x.Code, "err", x.Detail)
				l.tell(e.Peer, x)
			}
		case ownership.EventResultLost:
			l.queues.cfg.Logger.Warn("a result of this node does not count", "task", x.Task, "queue", x.Queue, "home", x.Peer, "epoch", x.Epoch, "cause", string(x.Cause))
			l.tell(e.Peer, x)
		case ownership.EventSkipped, ownership.EventForged, ownership.EventBlocked:
			l.tell(e.Peer, x)
		}
	}
}

// LastJump returns when no lease was revoked because the clocks had jumped, or zero if
// that has not happened since the start.
func (qs *Queues) LastJump() time.Time {
	l := qs.events
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.jumpedAt
}

func sameConflict(a, b wire.LeaseConflict) bool {
	a.Time = b.Time
	return a == b
}

// orphans records results that were rejected.
func (l *eventLog) orphans(all []ownership.Orphan) {
	now := l.queues.cfg.Clock.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range all {
		c := wire.LeaseConflict{Time: now, Task: o.Task.String(), Epoch: o.Epoch.String(), State: o.State.Name(), Cause: wire.LeaseResultRejected}
		if len(o.Digest) > 0 {
			c.Digest = "sha256:" + hex.EncodeToString(o.Digest)
		}
		c.Peer, c.PeerID = l.queues.parts.Book.Identify(o.From[:])
		if n := len(l.conflicts); n > 0 && sameConflict(l.conflicts[n-1], c) {
			continue // it was sent again
		}
		l.conflicts = appendBounded(l.conflicts, c, maxConflicts)
		l.queues.cfg.Logger.Warn("the result of another node does not count", "task", c.Task, "from", c.Peer, "epoch", c.Epoch, "state", c.State)
		l.queues.cfg.Event(wire.EventResultRejected, o.From, map[string]string{"task": c.Task, "state": c.State, "epoch": c.Epoch})
	}
}
