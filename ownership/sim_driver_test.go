package ownership

import (
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// receive handles a message, as the driver of a node does.
func (x *simNode) receive(from proto.PeerID, m Send) {
	now, h, o := x.clock(), x.home, x.owner
	switch b := m.Body.(type) {
	case *proto.Grant:
		code := proto.CodeOK
		if len(x.waiting) >= 4 {
			code = proto.CodeBusy
		}
		x.apply(o.OnGrant(from, b, code, now))
		x.work()
	case *proto.Granted:
		x.fenced(takenClaims(b), func() Output { return h.OnGranted(from, b, now) })
	case *proto.Start:
		x.fenced(b.Claims, func() Output { return h.OnStart(from, b, now) })
	case *proto.Permit:
		x.apply(o.OnPermit(from, b, now))
	case *proto.Renew:
		x.fenced(b.Claims, func() Output { return h.OnRenew(from, b, now) })
	case *proto.Renewed:
		x.apply(o.OnRenewed(from, b, now))
	case *proto.Release:
		x.fenced(releasedClaims(b), func() Output {
			out := h.OnRelease(from, b, now)
			x.s.w.released(x, out)
			return out
		})
	case *proto.ReleaseReply:
		x.apply(o.OnReleaseReply(from, b, now))
	case *proto.Status:
		x.apply(o.OnStatus(from, b, now))
	case *proto.StatusReply:
		x.fenced(heldClaims(b), func() Output { return h.OnStatusReply(from, b, now) })
	case *proto.Outcome:
		in := ResultOf(m.Task, b)
		x.fenced([]*proto.Claim{in.Claim}, func() Output {
			r, out := h.OnResult(from, in, now)
			if r.Code == proto.CodeStale {
				x.s.w.count("stale result")
			}
			out.send(from, proto.TypeAck, r)
			return out
		})
	case *proto.Ruling:
		if o.runForRuling(from, b) != nil {
			x.s.w.answered(x, from, b)
		}
		x.apply(o.OnResultAnswer(from, b, now))
	case *proto.Cancel:
		x.apply(o.OnCancel(from, b, now))
		x.apply(h.OnCancel(from, b, now))
	case *proto.Handoff:
		x.handoff(from, b)
	case *proto.HandedOff:
		x.apply(h.OnHandedOff(from, b, now))
	case *proto.QueueState:
		_, out := h.Learn(b, now)
		x.apply(out)
		if q := h.titles.byName[b.Name]; q.state != nil && (b.Generation < q.state.Generation || b.Generation == q.state.Generation && string(b.Home) < string(q.state.Home)) {
			x.s.send(x, from, Send{Type: proto.TypeSync, Body: q.state})
		}
	default:
		panic(fmt.Sprintf("%T", b))
	}
}

func (x *simNode) handoff(from proto.PeerID, b *proto.Handoff) {
	var t Task
	if b.Lease != nil {
		t = x.s.w.tasks[proto.TaskID(b.Lease.Task)].Task
	}
	had := x.home.tasks[t.ID]
	out := x.home.OnHandoff(from, b, t, x.clock())
	x.apply(out, func(batch *simBatch) {
		if ts := x.home.tasks[t.ID]; b.Lease != nil && ts != nil && ts != had {
			batch.tasks = append(batch.tasks, simRecord{t.ID, 'h'})
		}
	})
}

// work gives free slots to waiting tasks, and ends finished ones.
func (x *simNode) work() {
	x.asking = slices.DeleteFunc(x.asking, func(id proto.TaskID) bool {
		r := x.owner.runs[id]
		return r == nil || r.phase != proto.LeaseReceived || x.procs[id] != nil
	})
	x.waiting = slices.DeleteFunc(x.waiting, func(id proto.TaskID) bool {
		r := x.owner.runs[id]
		return r == nil || r.phase != proto.LeaseReceived
	})
	for len(x.waiting) > 0 && len(x.procs)+len(x.asking) < simSlots {
		id := x.waiting[0]
		x.waiting = x.waiting[1:]
		x.asking = append(x.asking, id)
		x.apply(x.owner.Ready(id, x.s.w.policyOf(id) == PolicyRetry, x.clock()))
	}
	if n := len(x.waiting); n > 0 && x.s.chance(10) {
		x.s.w.count("returned")
		x.apply(x.owner.Return(x.waiting[n-1], "it waited for a slot", 0, x.clock()))
	}
}

// startProc starts a handler.
func (x *simNode) startProc(st Start) {
	s := x.s
	s.w.started(x, st)
	p := &simProc{task: st.Task, end: 's'}
	switch n := s.rng.IntN(20); {
	case n == 0:
		p.end = 'n'
	case n <= 3:
		p.end = 'f'
	case n == 4:
		p.end = 'h'
	}
	x.procs[st.Task] = p
	x.asking = slices.DeleteFunc(x.asking, func(id proto.TaskID) bool { return id == st.Task })
	d := s.between(100*time.Millisecond, 4*time.Second)
	if s.chance(5) {
		d = s.between(4*time.Second, 25*time.Second)
	}
	if p.end == 'h' {
		x.owner.Progress(st.Task, x.clock())
		return
	}
	x.after(d, func() { x.endProc(p) })
}

func (x *simNode) endProc(p *simProc) {
	if p.dead || x.procs[p.task] != p {
		return
	}
	p.dead = true
	delete(x.procs, p.task)
	now := x.clock()
	switch p.end {
	case 'f':
		x.s.w.failedRun(p.task)
		x.apply(x.owner.Fail(p.task, &proto.Released{Cause: proto.CauseFailed, Reason: "exit 75"}, now))
	default:
		state := proto.Success
		if p.end == 'n' {
			state = proto.Failed
		}
		val := x.s.w.value(x, p.task)
		_, out := x.owner.Finish(p.task, state, val, now)
		x.apply(out)
	}
	x.work()
}

// stopProc stops a handler, which ends a moment later.
func (x *simNode) stopProc(st Stop) {
	x.after(200*time.Millisecond, func() {
		p := x.procs[st.Task]
		if p == nil {
			return
		}
		p.dead = true
		delete(x.procs, st.Task)
		x.s.w.killed(x, st.Task)
		now := x.clock()
		switch st.Cause {
		case "cancelled":
			_, out := x.owner.Finish(st.Task, proto.Cancelled, x.s.w.value(x, st.Task), now)
			x.apply(out)
		case "the handler reported no progress":
			x.s.w.failedRun(st.Task)
			x.apply(x.owner.Fail(st.Task, &proto.Released{Cause: proto.CauseTimeout, Reason: st.Cause}, now))
		default:
			x.apply(x.owner.Fail(st.Task, &proto.Released{Cause: proto.CauseStopped, Reason: st.Cause}, now))
		}
		x.work()
	})
}

// effectOf returns the answer of a handler's probe.
func (w *checker) effectOf(x *simNode, id proto.TaskID) (bool, []byte) {
	if w.tasks[id].success[x.i] > 0 || w.s.chance(2) {
		return true, w.value(x, id)
	}
	return false, nil
}

// cutOff records the runs that a death of x cut off.
func (w *checker) cutOff(x *simNode) {
	for id, r := range x.owner.runs {
		if r.phase == proto.LeaseStarted {
			w.tasks[id].cut[x.i] = r.claim.epoch
		}
	}
}

// released checks I7: a task that is to be parked ends when its owner reports that a death of
// its node cut the run off.
func (w *checker) released(x *simNode, out Output) {
	for _, e := range out.Events {
		t := w.tasks[e.Task]
		if e.Kind != EventReleased || t.policy != PolicyPark || t.rolled || x.home.tasks[e.Task] == nil {
			continue
		}
		if y := x.s.nodeOf(e.Peer); y != nil && t.cut[y.i] == e.Epoch {
			w.fail("I7: %v waits again after a death of node %d cut its run off, and its policy is to park it", e.Task, y.i)
		}
	}
}
