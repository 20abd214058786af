package ownership

import (
	"bytes"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// outcome is what a result says of its lease.
func (r *run) outcome() *proto.Outcome {
	return &proto.Outcome{
		State: r.state, BodyDigest: bytes.Clone(r.digest), BootId: slices.Clone(r.boot[:]), LeaseToken: slices.Clone(r.token[:]),
		EpochBoot: r.epoch.Boot, EpochCounter: r.epoch.Counter,
	}
}

// ResultOf makes of a result what [Home.OnResult] wants.
func ResultOf(id proto.TaskID, m *proto.Outcome) Result {
	return Result{
		Claim: &proto.Claim{Task: id[:], EpochBoot: m.GetEpochBoot(), EpochCounter: m.GetEpochCounter(), Token: m.GetLeaseToken(), BootId: m.GetBootId()},
		State: m.GetState(), Reason: m.GetReason(), Digest: m.GetBodyDigest(),
	}
}

// Ready says that a slot is free for a task that waits here. The start comes as a
// [Start] once it may happen: at once, or when the home has given leave.
func (o *Owner) Ready(id proto.TaskID, now Now) Output {
	out := o.beginInput(now)
	r := o.runs[id]
	if r == nil || r.phase != proto.LeaseReceived {
		return *out
	}
	switch {
	case o.now.Wall > r.notAfter:
		o.release(r, proto.CauseExpired, "its time was over before it could start", 0)
	case r.mode == proto.AtMostOnce && o.cfg.mutation != permitSkipped:
		r.mem.permitRequested = true
		o.requestPermit(r)
	default:
		o.start(r)
	}
	return *out
}

func (o *Owner) requestPermit(r *run) {
	r.mem.sentAt = max(o.now.Boot, 1)
	o.out.send(r.home, proto.TypeStart, &proto.Start{Claims: []*proto.Claim{r.message()}})
}

// start notes the start before the handler sees the task.
func (o *Owner) start(r *run) {
	r.phase, r.mem.alive, r.mem.permitRequested, r.mem.progressAt = proto.LeaseStarted, true, false, o.now.Boot
	if o.cfg.mutation != startVolatile {
		o.put(r)
	}
	o.out.Starts = append(o.out.Starts, Start{Task: r.task, Epoch: r.epoch, Attempt: r.attempt})
	o.event(EventStarted, r, "")
}

// runForRuling finds the run that a ruling is about: the answer to what this very lease
// said, from its home.
func (o *Owner) runForRuling(from proto.PeerID, m *proto.Ruling) *run {
	id, err := proto.TaskIDFrom(m.GetTask())
	r := o.runs[id]
	if err != nil || r == nil || r.home != from || r.epoch != (proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter}) ||
		string(m.Token) != string(r.token[:]) || string(m.BootId) != string(r.boot[:]) {
		o.ignored(id, from, proto.Seq{Boot: m.GetEpochBoot(), Counter: m.GetEpochCounter()}, "an answer to what this lease did not say, or not of its home")
		return nil
	}
	r.gen = max(r.gen, generationOf(m))
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

// handleRefusal does what an answer asks for that is not yes. It reports whether the
// answer was one of those.
func (o *Owner) handleRefusal(r *run, m *proto.Ruling) bool {
	switch m.Code {
	case proto.CodeOK:
		return false
	case proto.CodeMoved:
		p, err := proto.PeerIDFrom(m.Home)
		if err != nil || m.Generation <= r.gen {
			o.ignored(r.task, r.home, r.epoch, "no later home")
		}
		if err == nil {
			o.followHome(r, p, m.Generation)
			o.resend(r)
			if r.mem.permitRequested {
				o.requestPermit(r)
			}
		}
	case proto.CodeStale:
		o.loseLease(r, m.State)
	case proto.CodeBusy:
		o.homeUnknown(r)
	}
	return true // everything else: it is asked again
}

// homeUnknown notes that the home of r knows nothing of the task. It may be on its way
// there, or come back from its origin: what is to be said of it is kept until no home
// can have it any more.
func (o *Owner) homeUnknown(r *run) {
	if r.mem.unknownSince == 0 {
		r.mem.unknownSince = max(o.now.Boot, 1)
	}
	ended := r.phase == proto.LeaseFinished || r.phase == proto.LeaseReleased
	if ended && o.now.Boot-r.mem.unknownSince >= o.cfg.MessageLifetime && o.now.past(o.cfg.resultDeadline(r.notAfter)+(o.cfg.Skew+unknownRetention).Milliseconds()) {
		o.event(EventLost, r, "its home has forgotten the task, whose time is over")
		o.close(r, false)
	}
}

// unknownRetention is how long after the time of a task its end is kept for a home that does
// not know the task: one that was down on the way of the task to another may come back.
const unknownRetention = 24 * time.Hour

// loseLease ends a lease that is over by the word of its home. A handler that still runs
// is stopped. A success is kept while the task lives, and while a later grant may still
// be on its way: if it comes back here it is not run again (I6).
func (o *Owner) loseLease(r *run, state proto.TaskState) {
	if r.phase == proto.LeaseClosed || r.orphan && !state.Terminal() {
		return
	}
	o.event(EventLost, r, "the home says that it is over")
	r.mem.permitRequested = false
	switch {
	case r.phase == proto.LeaseFinished && !state.Terminal() && o.cfg.mutation != lostDropped:
		r.orphan = true
		o.put(r)
		return
	case r.mem.alive && !r.mem.stopped:
		r.mem.stopped = true
		o.out.Stops = append(o.out.Stops, Stop{Task: r.task, Cause: "the lease was lost: another node was granted the task, or it has ended"})
	}
	r.orphan = r.phase == proto.LeaseFinished && r.state == proto.Success
	o.close(r, r.phase == proto.LeaseFinished && o.cfg.mutation == lostDropped)
}

// close keeps of a lease that it was here. lose forgets how it ended.
func (o *Owner) close(r *run, lose bool) {
	switch {
	case r.phase == proto.LeaseReceived:
		r.cause = proto.Unstarted
	case r.phase == proto.LeaseStarted:
		r.cause = proto.CauseStopped
	}
	if r.phase != proto.LeaseFinished || lose {
		r.state = 0
	}
	r.phase, r.digest = proto.LeaseClosed, nil
	o.put(r)
}

// OnPermit takes a home's leave to start.
func (o *Owner) OnPermit(from proto.PeerID, m *proto.Permit, now Now) Output {
	out := o.beginInput(now)
	for _, x := range m.GetRulings() {
		r := o.runForRuling(from, x)
		if r == nil || o.handleRefusal(r, x) {
			continue
		}
		if r.phase == proto.LeaseReceived && r.mem.permitRequested {
			o.start(r)
		} else {
			o.ignored(r.task, from, r.epoch, "leave that was not asked for, or had before")
		}
	}
	return *out
}

// Progress notes that a handler that declares progress has made some. From its
// first word on it must go on doing so. It reports whether such a handler runs.
func (o *Owner) Progress(id proto.TaskID, now Now) bool {
	o.now = now
	r := o.runs[id]
	if r == nil || !r.mem.alive {
		return false
	}
	r.mem.reportsProgress, r.mem.progressAt, r.mem.stalled = true, now.Boot, false
	return true
}

// Finish takes the end of a handler: what it did is durable as a result before it
// goes home. What the driver keeps of the result belongs into the same batch. When
// the lease is over already nothing goes home, and the driver's result is dropped:
// kept is false.
func (o *Owner) Finish(id proto.TaskID, state proto.TaskState, digest []byte, now Now) (kept bool, out Output) {
	o.beginInput(now)
	r := o.runs[id]
	switch {
	case r == nil || !r.mem.alive:
		return false, o.out
	case r.phase == proto.LeaseClosed && state == proto.Success:
		// Its lease was lost while it ran: if the task comes back here it is not
		// run again.
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

// Fail takes the end of a handler that may be tried again, or that was stopped.
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
	o.release(r, why.GetCause(), why.GetReason(), why.GetRetryAfterMs())
	return o.out
}

// OnResultAnswer takes a home's answer to a result: code zero is COMMITTED.
func (o *Owner) OnResultAnswer(from proto.PeerID, m *proto.Ruling, now Now) Output {
	out := o.beginInput(now)
	r := o.runForRuling(from, m)
	switch {
	case r == nil:
		return *out
	case r.phase != proto.LeaseFinished:
		o.ignored(r.task, from, r.epoch, "an answer to a result that is not on its way")
		return *out
	case o.handleRefusal(r, m):
		return *out
	}
	o.close(r, false)
	return *out
}

// OnReleaseReply takes a home's answer to what was given back.
func (o *Owner) OnReleaseReply(from proto.PeerID, m *proto.ReleaseReply, now Now) Output {
	out := o.beginInput(now)
	for _, x := range m.GetRulings() {
		r := o.runForRuling(from, x)
		if r == nil {
			continue
		}
		if r.phase != proto.LeaseReleased {
			o.ignored(r.task, from, r.epoch, "an answer to what was not given back, or was answered")
			continue
		}
		if x.Code == proto.CodeMoved || x.Code == proto.CodeBusy {
			o.handleRefusal(r, x)
			continue
		}
		o.close(r, false)
	}
	return *out
}

// OnCancel stops a task that its home wants stopped.
func (o *Owner) OnCancel(from proto.PeerID, m *proto.Cancel, now Now) Output {
	out := o.beginInput(now)
	id, err := proto.TaskIDFrom(m.GetTask())
	r := o.runs[id]
	if err != nil || r == nil {
		return *out
	}
	if r.home != from {
		o.ignored(id, from, r.epoch, "a wish to cancel of who is not its home")
		return *out
	}
	switch {
	case r.phase == proto.LeaseReceived && !r.mem.permitRequested:
		o.release(r, proto.Unstarted, "cancelled before it started", 0)
	case r.mem.alive && !r.mem.stopped:
		r.mem.stopped = true
		out.Stops = append(out.Stops, Stop{Task: id, Cause: "cancelled", Cancel: true})
	}
	return *out
}

// OnStatus answers what became of leases. Of one that is not known here it is noted
// that it will never be started, before that is said.
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
		case k.boot != (proto.BootID{}) && k.boot != o.boot && (r == nil || r.epoch.Compare(k.epoch) < 0):
			// It was for an earlier start of this node, and no grant of that is taken.
			m := &proto.Released{Claim: k.message(), Cause: proto.CauseUnknown, Reason: "it was meant for an earlier start of this node"}
			out.send(from, proto.TypeRelease, &proto.Release{Released: []*proto.Released{m}})
		case r != nil && r.epoch.Compare(k.epoch) < 0 && r.home != from && r.phase != proto.LeaseClosed:
			// Whoever is the home now is told of by the one that is known here.
		case r == nil || r.epoch.Compare(k.epoch) < 0 && !r.mem.alive && r.phase != proto.LeaseFinished:
			o.neverStart(from, k, r)
		case r.epoch.Compare(k.epoch) < 0: // the grant is on its way, and will be adopted
			o.adopt(r, from, o.atThisBoot(k), &proto.Grant{LeaseMs: uint32(o.cfg.Lease.Milliseconds()), Attempt: r.attempt})
			reply.Held = append(reply.Held, &proto.Held{Claim: r.message(), Phase: r.phase})
		case r.epoch.Compare(k.epoch) > 0 && startedOnce(r) && !r.mem.alive && (r.orphan || r.phase == proto.LeaseClosed || r.phase == proto.LeaseReleased):
			// Two homes have it: one had its disk put back. It runs for neither any more.
			m := &proto.Released{Claim: o.withBoot(k).message(), Cause: proto.CauseParked, Reason: "this node started it under a later lease"}
			out.send(from, proto.TypeRelease, &proto.Release{Released: []*proto.Released{m}})
		case r.epoch != k.epoch || r.token != k.token:
			o.ignored(k.task, from, k.epoch, "a question about another lease")
		default:
			o.followHome(r, from, k.gen)
			if r.home != from {
				o.ignored(k.task, from, k.epoch, "a question of who is not its home")
				continue
			}
			switch r.phase {
			case proto.LeaseReleased:
				r.mem.sentAt = 0
				o.resend(r)
			case proto.LeaseClosed:
				o.answerClosed(r)
			default:
				reply.Held = append(reply.Held, &proto.Held{Claim: r.message(), Phase: r.phase})
				o.resend(r)
			}
		}
	}
	if len(reply.Held) > 0 {
		out.send(from, proto.TypeStatusReply, reply)
	}
	return *out
}

func (o *Owner) atThisBoot(k claim) claim {
	k.boot = o.boot
	return k
}

// startedOnce reports whether r was started, and may be once only.
func startedOnce(r *run) bool { return everStarted(r) && r.mode == proto.AtMostOnce }

// neverStart notes that an epoch will not be started here.
func (o *Owner) neverStart(from proto.PeerID, k claim, old *run) {
	if old != nil {
		if startedOnce(old) {
			return
		}
		if old.state == proto.Success {
			old.claim, old.home, old.grantedBy, old.orphan = o.withBoot(k), from, from, false
			o.release(old, proto.CauseParked, "it succeeded here before, and its home has forgotten", 0)
			return
		}
		o.forget(old)
	}
	if old == nil && k.gen <= 1 && k.epoch.Compare(o.watermarks[from]) <= 0 { // it gave the epoch itself: a copy of its grant is refused anyway
		m := &proto.Released{Claim: o.withBoot(k).message(), Cause: proto.CauseUnknown, Reason: "this node does not have the lease"}
		o.out.send(from, proto.TypeRelease, &proto.Release{Released: []*proto.Released{m}})
		return
	}
	if o.unknownLeases[from] >= maxUnknownLeases {
		return // it asks again, or counts the lease as lost
	}
	r := &run{claim: o.withBoot(k), home: from, grantedBy: from, phase: proto.LeaseReceived}
	o.add(r)
	o.release(r, proto.CauseUnknown, "this node does not have the lease", 0)
}

// maxUnknownLeases is of how many leases that this node never had it notes that for one node
// that asks: any member can ask about leases that nobody gave.
const maxUnknownLeases = 4096

// withBoot is k for the start of this node that it is for.
func (o *Owner) withBoot(k claim) claim {
	if k.boot == (proto.BootID{}) {
		k.boot = o.boot
	}
	return k
}

// answerClosed says again what a home wants to know that has lost the answer.
func (o *Owner) answerClosed(r *run) {
	if r.mem.alive {
		return // its handler is being stopped, and tells then
	}
	cause, why := r.cause, "it was given back before"
	if r.state == proto.Success || cause == proto.CauseUnspecified {
		cause, why = proto.CauseParked, "it ended here before, and its home has forgotten"
	}
	o.release(r, cause, why, 0)
}
