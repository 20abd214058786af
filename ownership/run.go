package ownership

import (
	"bytes"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// outcome returns the lease fields of a result.
func (r *run) outcome() *proto.Outcome {
	return &proto.Outcome{
		State: r.state, BodyDigest: bytes.Clone(r.digest), BootId: slices.Clone(r.claim.boot[:]), LeaseToken: slices.Clone(r.claim.token[:]),
		EpochBoot: r.claim.epoch.Boot, EpochCounter: r.claim.epoch.Counter,
	}
}

// ResultOf converts an outcome for [Home.OnResult].
func ResultOf(id proto.TaskID, m *proto.Outcome) Result {
	return Result{
		Claim: &proto.Claim{Task: id[:], EpochBoot: m.GetEpochBoot(), EpochCounter: m.GetEpochCounter(), Token: m.GetLeaseToken(), BootId: m.GetBootId()},
		State: m.GetState(), Reason: m.GetReason(), Digest: m.GetBodyDigest(),
	}
}

// Ready reports a free slot for a task that waits here. The [Start] follows once it is
// allowed: at once, or when the home has permitted it. A repeatable handler may start
// before that is on disk, if this is the first attempt: see [Owner.Begin].
func (o *Owner) Ready(id proto.TaskID, repeatable bool, now Now) Output {
	out := o.beginInput(now)
	r := o.runs[id]
	if r == nil || r.phase != proto.LeaseReceived {
		return *out
	}
	switch {
	case o.over(r):
		o.release(r, proto.CauseExpired, "its time had passed before it could start", 0)
	case r.mode == proto.AtMostOnce:
		r.mem.permitRequested = true
		o.requestPermit(r)
	default:
		o.start(r, repeatable && mayStartEarly(r) && !r.mem.regranted)
	}
	return *out
}

// mayStartEarly reports whether the handler of r, if it is repeatable, may be called before
// the start is on disk. After a death of the node that may have been caused by this task
// its next start is on disk first, so that a task that kills its node is found.
func mayStartEarly(r *run) bool { return r.mode != proto.AtMostOnce && r.attempt <= 1 }

func (o *Owner) requestPermit(r *run) {
	r.mem.sentAt = max(o.now.Boot, 1)
	o.out.send(r.home, proto.TypeStart, &proto.Start{Claims: []*proto.Claim{r.claim.message()}})
}

// start stores the start before the handler gets the task, unless it may start early.
func (o *Owner) start(r *run, early bool) {
	r.phase, r.mem.alive, r.mem.permitRequested, r.mem.progressAt = proto.LeaseStarted, true, false, o.now.Boot
	o.put(r)
	o.out.Starts = append(o.out.Starts, Start{Task: r.claim.task, Epoch: r.claim.epoch, Attempt: r.attempt, Early: early})
	o.event(EventStarted, r, "")
}

// runForRuling finds the run that a ruling refers to: it must answer this very lease and
// come from its home.
func (o *Owner) runForRuling(from proto.PeerID, m *proto.Ruling) *run {
	id, err := proto.TaskIDFrom(m.GetTask())
	r := o.runs[id]
	if err != nil || r == nil || r.home != from || r.claim.epoch != (proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter}) ||
		string(m.Token) != string(r.claim.token[:]) || string(m.BootId) != string(r.claim.boot[:]) {
		o.out.ignored(id, from, proto.Seq{Boot: m.GetEpochBoot(), Counter: m.GetEpochCounter()}, "an answer to another lease, or not from its home")
		return nil
	}
	r.claim.gen = max(r.claim.gen, generationOf(m))
	if m.Code != proto.CodeBusy {
		r.mem.unknownSince = 0
	}
	return r
}

func generationOf(m *proto.Ruling) uint64 {
	if m.Code == proto.CodeMoved {
		return 0
	}
	return m.Generation
}

// handleRefusal handles a negative answer. It reports whether the answer was negative.
func (o *Owner) handleRefusal(r *run, m *proto.Ruling) bool {
	switch m.Code {
	case proto.CodeOK:
		return false
	case proto.CodeMoved:
		p, err := proto.PeerIDFrom(m.Home)
		if err != nil || m.Generation <= r.claim.gen {
			o.out.ignored(r.claim.task, r.home, r.claim.epoch, "not a later home")
		}
		if err == nil {
			o.followHome(r, p, m.Generation)
			o.resend(r)
			if r.mem.permitRequested {
				o.requestPermit(r)
			}
		}
	case proto.CodeDuplicate:
		if r.phase != proto.LeaseFinished || r.state != m.State {
			o.loseLease(r, m.State)
		} else { // its result counts: COMMITTED says so too
			o.close(r)
		}
	case proto.CodeStale:
		o.loseLease(r, m.State)
	case proto.CodeBusy:
		o.homeUnknown(r)
	}
	return true // everything else: it is sent again
}

// homeUnknown handles a home that does not know the task. The task may be in transit there,
// or come back from its origin, so its end is kept until no home can have the task any
// more.
func (o *Owner) homeUnknown(r *run) {
	if r.mem.unknownSince == 0 {
		r.mem.unknownSince = max(o.now.Boot, 1)
	}
	ended := r.phase == proto.LeaseFinished || r.phase == proto.LeaseReleased
	if ended && o.now.Boot-r.mem.unknownSince >= o.cfg.MessageLifetime && o.now.past(o.cfg.resultDeadline(r.notAfter)+(o.cfg.Skew+unknownRetention).Milliseconds()) {
		o.event(lostKind(r), r, wire.LeaseHomeGone)
		o.close(r)
	}
}

// HomeRevoked is called repeatedly while p, the home of leases of this node, is revoked: nobody
// answers there. Their ends are kept for as long as for a home that does not know the tasks: an
// admin may seize the queue.
func (o *Owner) HomeRevoked(p proto.PeerID, now Now) Output {
	out := o.beginInput(now)
	for r := range each[*run](o.live) {
		if r.home == p {
			o.homeUnknown(r)
		}
	}
	return *out
}

// unknownRetention is how long past not_after the end of a task is kept for a home that
// does not know the task: a home that was down while the task was handed over may come
// back.
const unknownRetention = 24 * time.Hour

// loseLease ends a lease that its home has declared over. A running handler is stopped. A
// success is kept while the task may live or a later grant may be in transit: if the task
// comes back here it is not run again (I6).
func (o *Owner) loseLease(r *run, state proto.TaskState) {
	if r.phase == proto.LeaseClosed || r.orphan && !state.Terminal() {
		return
	}
	o.event(lostKind(r), r, wire.LeaseEndedByHome)
	r.mem.permitRequested = false
	switch {
	case r.phase == proto.LeaseFinished && !state.Terminal():
		r.orphan = true
		o.put(r)
		return
	case r.mem.alive && !r.mem.stopped:
		r.mem.stopped = true
		o.out.Stops = append(o.out.Stops, Stop{Task: r.claim.task, Cause: "the lease was lost: another node was granted the task, or it has ended"})
	}
	r.orphan = r.phase == proto.LeaseFinished && r.state == proto.Success
	o.close(r)
}

// lostKind returns the kind of the event of a lease that is over: whether it has a result
// of which nothing was told yet.
func lostKind(r *run) EventKind {
	if r.phase == proto.LeaseFinished && !r.orphan {
		return EventResultLost
	}
	return EventLost
}

// close keeps a note that the lease was here, and how it ended.
func (o *Owner) close(r *run) {
	switch {
	case r.phase == proto.LeaseReceived:
		r.cause = proto.Unstarted
	case r.phase == proto.LeaseStarted:
		r.cause = proto.CauseStopped
	}
	if r.phase != proto.LeaseFinished {
		r.state = 0
	}
	r.phase, r.digest, r.reason = proto.LeaseClosed, nil, ""
	o.put(r)
}

// OnPermit takes a home's permits to start.
func (o *Owner) OnPermit(from proto.PeerID, m *proto.Permit, now Now) Output {
	out := o.beginInput(now)
	for _, x := range m.GetRulings() {
		r := o.runForRuling(from, x)
		if r == nil || o.handleRefusal(r, x) {
			continue
		}
		if r.phase == proto.LeaseReceived && r.mem.permitRequested {
			o.start(r, false)
		} else {
			o.out.ignored(r.claim.task, from, r.claim.epoch, "a permit that was not requested, or a second one")
		}
	}
	return *out
}

// Progress records progress of a handler. A handler that has reported once must keep
// reporting. It reports whether such a handler runs.
func (o *Owner) Progress(id proto.TaskID, now Now) bool {
	o.now = now
	r := o.runs[id]
	if r == nil || !r.mem.alive {
		return false
	}
	r.mem.reportsProgress, r.mem.progressAt, r.mem.stalled = true, now.Boot, false
	return true
}

// Finish takes the result of a handler, which is durable before it is sent. What the driver
// stores of the result belongs in the same batch. When the lease is already over nothing is
// sent and the driver drops the result: kept is false.
func (o *Owner) Finish(id proto.TaskID, state proto.TaskState, digest []byte, now Now) (kept bool, out Output) {
	o.beginInput(now)
	r := o.runs[id]
	switch {
	case r == nil || !r.mem.alive:
		return false, o.out
	case r.phase == proto.LeaseClosed && state == proto.Success:
		// Its lease was lost while it ran. If the task comes back here it must not run
		// again.
		o.finish(r, state, digest)
		r.orphan = true
		o.put(r)
		return true, o.out
	case r.phase == proto.LeaseClosed:
		r.mem.alive = false
		return false, o.out
	}
	o.finish(r, state, digest)
	return true, o.out
}

// Fail takes the end of a handler that was stopped or may be retried. One that was stopped
// because it hung spends an abandon, as if its lease had been lost.
func (o *Owner) Fail(id proto.TaskID, why *proto.Released, now Now) Output {
	o.beginInput(now)
	r := o.runs[id]
	if r == nil || !r.mem.alive {
		return o.out
	}
	if r.phase == proto.LeaseClosed {
		r.mem.alive = false
		return o.out
	}
	r.maxAttempts = why.GetMaxAttempts()
	cause, reason := why.GetCause(), why.GetReason()
	if r.mem.hung && cause == proto.CauseStopped {
		cause, reason = proto.CauseCrashed, "its handler reported no progress and was stopped"
	}
	o.release(r, cause, reason, why.GetRetryAfterMs())
	return o.out
}

// OnResultAnswer takes a home's answer to a result. Code zero is COMMITTED.
func (o *Owner) OnResultAnswer(from proto.PeerID, m *proto.Ruling, now Now) Output {
	out := o.beginInput(now)
	r := o.runForRuling(from, m)
	switch {
	case r == nil:
		return *out
	case r.phase != proto.LeaseFinished:
		o.out.ignored(r.claim.task, from, r.claim.epoch, "an answer to a result that was not sent")
		return *out
	case o.handleRefusal(r, m):
		return *out
	}
	o.close(r)
	return *out
}

// OnReleaseReply takes a home's answers to releases.
func (o *Owner) OnReleaseReply(from proto.PeerID, m *proto.ReleaseReply, now Now) Output {
	out := o.beginInput(now)
	for _, x := range m.GetRulings() {
		r := o.runForRuling(from, x)
		if r == nil {
			continue
		}
		if r.phase != proto.LeaseReleased {
			o.out.ignored(r.claim.task, from, r.claim.epoch, "an answer to a release that was not sent, or a second one")
			continue
		}
		if x.Code == proto.CodeMoved || x.Code == proto.CodeBusy {
			o.handleRefusal(r, x)
			continue
		}
		o.close(r)
	}
	return *out
}

// OnCancel stops a task at the request of its home.
func (o *Owner) OnCancel(from proto.PeerID, m *proto.Cancel, now Now) Output {
	out := o.beginInput(now)
	id, err := proto.TaskIDFrom(m.GetTask())
	r := o.runs[id]
	if err != nil || r == nil {
		return *out
	}
	if r.home != from {
		o.out.ignored(id, from, r.claim.epoch, "a cancel from a node that is not its home")
		return *out
	}
	switch {
	case r.phase == proto.LeaseReceived && !r.mem.permitRequested:
		o.release(r, proto.Unstarted, "cancelled before it started", 0)
	case r.mem.alive && (!r.mem.stopped || m.GetHard() && !r.mem.killed):
		r.mem.stopped, r.mem.killed = true, m.GetHard()
		out.Stops = append(out.Stops, Stop{Task: id, Cause: "cancelled", Cancel: true, Hard: m.GetHard()})
	}
	return *out
}

// OnStatus answers questions about leases. For an unknown lease it first stores that it
// will never be started.
func (o *Owner) OnStatus(from proto.PeerID, m *proto.Status, now Now) Output {
	out := o.beginInput(now)
	reply := new(proto.StatusReply)
	for _, cm := range m.GetClaims() {
		k, ok := claimFrom(cm)
		if !ok {
			continue
		}
		r := o.runs[k.task]
		switch {
		case k.boot != (proto.BootID{}) && k.boot != o.boot && (r == nil || r.claim.epoch.Compare(k.epoch) < 0):
			// It was for an earlier start of this node, which accepts no grants any more.
			m := &proto.Released{Claim: k.message(), Cause: proto.CauseUnknown, Reason: "it is for an earlier start of this node"}
			out.send(from, proto.TypeRelease, &proto.Release{Released: []*proto.Released{m}})
		case r != nil && r.claim.epoch.Compare(k.epoch) < 0 && r.home != from && r.phase != proto.LeaseClosed:
			// A later home reports itself to the home that is known here.
		case r == nil || r.claim.epoch.Compare(k.epoch) < 0 && !r.mem.alive && r.phase != proto.LeaseFinished:
			o.neverStart(from, k, r)
		case r.claim.epoch.Compare(k.epoch) < 0: // the grant is in transit, and will be adopted
			o.adopt(r, from, o.withBoot(k), &proto.Grant{LeaseMs: uint32(o.cfg.Lease.Milliseconds()), Attempt: r.attempt})
			reply.Held = append(reply.Held, &proto.Held{Claim: r.claim.message(), Phase: r.phase})
		case r.claim.epoch.Compare(k.epoch) > 0 && startedOnce(r) && !r.mem.alive && (r.orphan || r.phase == proto.LeaseClosed || r.phase == proto.LeaseReleased):
			// Two homes have the task, one after a rollback of its disk. It runs for
			// neither any more.
			m := &proto.Released{Claim: o.withBoot(k).message(), Cause: proto.CauseParked, Reason: "this node started it under a later lease"}
			out.send(from, proto.TypeRelease, &proto.Release{Released: []*proto.Released{m}})
		case r.claim.epoch != k.epoch || r.claim.token != k.token:
			o.out.ignored(k.task, from, k.epoch, "a question about another lease")
		default:
			o.followHome(r, from, k.gen)
			if r.home != from {
				o.out.ignored(k.task, from, k.epoch, "a question from a node that is not its home")
				continue
			}
			switch r.phase {
			case proto.LeaseReleased:
				r.mem.sentAt = 0
				o.resend(r)
			case proto.LeaseClosed:
				o.answerClosed(r)
			default:
				reply.Held = append(reply.Held, &proto.Held{Claim: r.claim.message(), Phase: r.phase})
				o.resend(r)
			}
		}
	}
	if len(reply.Held) > 0 {
		out.send(from, proto.TypeStatusReply, reply)
	}
	return *out
}

// startedOnce reports whether r was started and may be started only once.
func startedOnce(r *run) bool { return everStarted(r) && r.mode == proto.AtMostOnce }

// neverStart stores that an epoch will not be started here, unless no home can have reached it:
// then the task could not be granted here any more.
func (o *Owner) neverStart(from proto.PeerID, k claim, old *run) {
	if k.epoch.Boot > o.now.plausibleBoot() {
		o.out.ignored(k.task, from, k.epoch, "a question about an epoch that no home has reached")
		return
	}
	if old != nil {
		if startedOnce(old) {
			return
		}
		if old.state == proto.Success {
			old.claim, old.home, old.grantedBy, old.orphan = o.withBoot(k), from, from, false
			o.release(old, proto.CauseParked, "it succeeded here before, and its home has lost that", 0)
			return
		}
		o.forget(old)
	}
	if old == nil && k.gen <= 1 && k.epoch.Compare(o.watermarks[from]) <= 0 { // it granted the epoch itself, and a copy of its grant is refused anyway
		m := &proto.Released{Claim: o.withBoot(k).message(), Cause: proto.CauseUnknown, Reason: "this node does not have the lease"}
		o.out.send(from, proto.TypeRelease, &proto.Release{Released: []*proto.Released{m}})
		return
	}
	if o.unknownLeases[from] >= maxUnknownLeases {
		return // it asks again, or treats the lease as lost
	}
	r := &run{claim: o.withBoot(k), home: from, grantedBy: from, phase: proto.LeaseReceived}
	o.add(r)
	o.release(r, proto.CauseUnknown, "this node does not have the lease", 0)
}

// maxUnknownLeases limits the stored answers about leases that this node never had, for
// each node that asks: any member can ask about leases that were never granted.
const maxUnknownLeases = 4096

// withBoot returns k with the boot id of this start, if k has none.
func (o *Owner) withBoot(k claim) claim {
	if k.boot == (proto.BootID{}) {
		k.boot = o.boot
	}
	return k
}

// answerClosed repeats the end of a closed lease for a home that has lost the answer.
func (o *Owner) answerClosed(r *run) {
	if r.mem.alive {
		return // its handler is being stopped; the answer follows then
	}
	cause, why := r.cause, "it was released before"
	if r.state == proto.Success || cause == proto.CauseUnspecified {
		cause, why = proto.CauseParked, "it ended here before, and its home has lost that"
	}
	o.release(r, cause, why, 0)
}
