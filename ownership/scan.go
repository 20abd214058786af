package ownership

import (
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func msec(n uint64) time.Duration {
	return time.Duration(min(n, uint64(365*24*time.Hour/time.Millisecond))) * time.Millisecond
}

// Tick is called about once a second. It resends what was not answered, and at each scan
// interval reclaims expired leases.
func (h *Home) Tick(now Now) Output {
	h.beginInput(now)
	h.resend()
	if h.lastScan == nil || now.Mono-h.lastScan.Mono >= h.cfg.Scan || now.Boot-h.lastScan.Boot >= h.cfg.Scan {
		h.scanAll()
	}
	h.sendStatusRequests(false)
	return h.endInput()
}

const jump = 2 * time.Second // clocks that drift apart by more between two scans have jumped

// jumped reports whether the clocks have drifted apart since the last scan, or this node was
// suspended: messages from owners may not have been read yet.
func jumped(last *Now, now Now, cfg Config) bool {
	if last == nil {
		return false
	}
	mono, boot := now.Mono-last.Mono, now.Boot-last.Boot
	wall := time.Duration(now.Wall-last.Wall) * time.Millisecond
	return (wall-mono).Abs() > jump || (boot-mono).Abs() > jump || mono > cfg.Scan+cfg.Lease/2
}

// scanAll checks every live task.
func (h *Home) scanAll() {
	skip, now := jumped(h.lastScan, h.now, h.cfg), h.now
	h.lastScan = &now
	h.epochs.settle(h.live)
	if skip {
		h.out.Events = append(h.out.Events, Event{Kind: EventSkipped, Peer: h.self})
	}
	for ts := range each[*taskState](h.live) {
		h.checkTask(ts, skip)
		if l := ts.mem.lane; ts.sharesLane() && len(l.heads()) > 1 && l.heads()[0] == ts {
			h.reschedule(ts) // other members may serve its kind now, or none any more
		}
	}
	h.ended.forget(h.now, h.cfg, &h.out)
	h.transit.forget(h.now, h.cfg, &h.out)
	h.moveOut()
}

// checkTask decides about one task at a scan.
func (h *Home) checkTask(ts *taskState, skip bool) {
	late := h.now.past(h.cfg.resultDeadline(ts.task.NotAfter))
	switch {
	case ts.mayHaveRun() && !ts.leased() && !ts.permitted() && ts.mem.queue.title.isHome(h.self) && h.now.Mono >= ts.mem.leaseUntil:
		h.end(ts, End{State: proto.DeadLetter, Cause: proto.TaskHomeRestoredOnce})
	case ts.free():
		switch {
		case skip:
		case ts.lost && late:
			h.end(ts, ts.endOutlived())
		case !ts.lost && h.now.past(ts.task.NotAfter):
			h.end(ts, End{State: proto.Expired, Cause: proto.TaskTooLate, Reason: ts.reason})
		}
		return
	case ts.leased() && h.now.Mono >= ts.mem.leaseUntil:
		if skip || !h.mayReclaim() {
			ts.mem.leaseUntil = max(ts.mem.leaseUntil, h.now.Mono+h.cfg.Scan)
			h.requestStatus(ts)
			return
		}
		h.lapse(ts, EventLapsed, "")
	case ts.leased():
		if h.now.Mono+h.cfg.Lease/2 >= ts.mem.leaseUntil {
			h.requestStatus(ts)
		}
		return
	}
	switch {
	case ts.state.Terminal():
	case late && !skip:
		h.end(ts, ts.endOutlived())
	case ts.permitted():
		h.checkSilent(ts)
	case ts.cancel && !skip:
		h.end(ts, lostCancelled())
	}
}

// endCancelled returns the end of a cancelled task that no owner has now.
func (ts *taskState) endCancelled() End {
	if ts.lost {
		return lostCancelled()
	}
	return End{State: proto.Cancelled, Cause: proto.TaskCancelledUnstarted}
}

func lostCancelled() End {
	return End{State: proto.Cancelled, Cause: proto.TaskCancelledLost}
}

// endOutlived returns the end of a task whose owner will not report any more (I3).
func (ts *taskState) endOutlived() End {
	if ts.task.atMostOnce() && ts.permitted() {
		return End{State: proto.DeadLetter, Cause: proto.TaskOwnerLostOnce}
	}
	return End{State: proto.Expired, Cause: proto.TaskOwnerLost, Reason: ts.reason}
}

// lapse takes a lease back. Nothing is written until another node is granted the task:
// until then messages from its owner still count.
func (h *Home) lapse(ts *taskState, kind EventKind, cause wire.LeaseCause) {
	h.event(kind, ts, ts.owner, cause)
	ts.mem.lapsed = true
	switch {
	case ts.permitted():
		if ts.mem.silentSince == 0 {
			ts.mem.silentSince = max(h.now.Mono, 1)
		}
		h.requestStatus(ts)
	case ts.cancel:
		h.end(ts, lostCancelled())
		return
	case ts.mayHaveCrashed() && ts.abandons+1 >= maxAbandons:
		h.end(ts, End{State: proto.DeadLetter, Cause: proto.TaskAbandonedOften})
		return
	case !ts.mem.acked:
		h.members.backOff(ts.owner, "", h.now.Mono+h.cfg.Scan) // it did not even answer
	}
	h.reschedule(ts)
}

// checkSilent asks the owner of an at_most_once task that may have started, and marks the
// task INDETERMINATE when the owner stays silent.
func (h *Home) checkSilent(ts *taskState) {
	h.requestStatus(ts)
	if ts.state == proto.Running && ts.mem.silentSince > 0 && !h.out.full() && h.now.Mono-ts.mem.silentSince >= 4*h.cfg.Lease {
		ts.state = proto.Indeterminate
		ts.reason = "its owner has been silent since the lease expired"
		h.put(ts)
		h.event(EventIndeterminate, ts, ts.owner, "")
	}
}

// requestStatus adds ts to the next Status for its owner.
func (h *Home) requestStatus(ts *taskState) { h.statusRequests = append(h.statusRequests, ts) }

// sendStatusRequests sends the collected Status messages, one to each owner.
func (h *Home) sendStatusRequests(moved bool) {
	byOwner := map[proto.PeerID]*proto.Status{}
	for _, ts := range h.statusRequests {
		if ts.released || ts.state.Terminal() || h.tasks[ts.task.ID] != ts {
			continue
		}
		s := byOwner[ts.owner]
		if s == nil || len(s.Claims) >= proto.MaxGroup {
			s = &proto.Status{QueueMoved: moved}
			byOwner[ts.owner] = s
			h.out.send(ts.owner, proto.TypeStatus, s)
		}
		ts.mem.sentAt = h.now.Mono
		s.Claims = append(s.Claims, ts.claim().message())
	}
	h.statusRequests = h.statusRequests[:0]
}

// resend resends unanswered grants, cancels and handoffs.
func (h *Home) resend() {
	for ts := range each[*taskState](h.live) {
		if h.now.Mono-ts.mem.sentAt < h.cfg.Heartbeat || ts.free() {
			continue
		}
		switch {
		case ts.cancel && !ts.mem.lapsed:
			h.sendCancel(ts)
		case ts.leased() && !ts.mem.acked:
			h.sendGrant(ts)
		}
	}
	h.resendHandoffs()
}

// mayReclaim reports whether this home may reclaim leases (I16).
func (h *Home) mayReclaim() bool { return h.active }

// Dead reports that membership considers a node dead. Its leases are reclaimed at once: if
// it is alive after all, the epoch fences it. An at_most_once task that may have started
// waits for its lease and for its owner.
func (h *Home) Dead(p proto.PeerID, now Now) Output {
	h.beginInput(now)
	if !h.mayReclaim() {
		return h.out
	}
	for ts := range each[*taskState](h.live) {
		if ts.leased() && ts.owner == p && !ts.permitted() {
			h.lapse(ts, EventDead, "")
		}
	}
	return h.endInput()
}

// Recover reclaims one lease at an operator's request, as Dead does.
func (h *Home) Recover(id proto.TaskID, now Now) (bool, Output) {
	h.beginInput(now)
	ts := h.tasks[id]
	if ts == nil || !ts.leased() || ts.permitted() {
		return false, h.out
	}
	h.lapse(ts, EventDead, wire.LeaseRecovered)
	return true, h.endInput()
}
