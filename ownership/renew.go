package ownership

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// maxOpenRenews is how many unanswered Renews of a home are remembered.
const maxOpenRenews = 256

// Tick is called about once a second. It renews the leases of running handlers, resends
// what was not answered, and stops handlers whose lease may be over.
func (o *Owner) Tick(now Now) Output {
	out := o.beginInput(now)
	o.checkHandlers()
	o.resendAll()
	if o.renewedAt == 0 || now.Boot-o.renewedAt >= o.cfg.Heartbeat {
		o.renewedAt = max(now.Boot, 1)
		o.renew()
	}
	o.sweep()
	return *out
}

// checkHandlers checks for each handler that it makes progress and that its lease is valid.
func (o *Owner) checkHandlers() {
	for r := range each[*run](o.live) {
		if r.mem.permitRequested && r.phase == proto.LeaseReceived && o.now.Boot >= r.mem.leaseUntil { // its slot is for other tasks
			o.release(r, proto.Unstarted, "its home did not permit the start before the lease was over", 0)
		}
		if !r.mem.alive || r.phase != proto.LeaseStarted {
			continue
		}
		if r.mem.reportsProgress && !r.mem.stalled && o.now.Boot-r.mem.progressAt >= o.cfg.StallAfter {
			r.mem.stalled = true
			o.emit(Event{Kind: EventStalled, Detail: (o.now.Boot - r.mem.progressAt).Round(time.Second).String()}, r)
			if !r.mem.stopped {
				r.mem.stopped, r.mem.hung = true, true
				o.out.Stops = append(o.out.Stops, Stop{Task: r.claim.task, Cause: "the handler reported no progress"})
			}
		}
		if !r.mem.warned && o.now.Boot >= r.mem.leaseUntil-o.cfg.Margin {
			r.mem.warned = true
			o.event(EventLost, r, wire.LeaseNotRenewed)
			if r.stop && !r.mem.stopped {
				r.mem.stopped = true
				o.out.Stops = append(o.out.Stops, Stop{Task: r.claim.task, Cause: "the lease could not be renewed, and on_lost_lease is stop"})
			}
		}
	}
}

// resendAll resends what was not answered.
func (o *Owner) resendAll() {
	for r := range each[*run](o.live) {
		o.resend(r)
		if r.phase == proto.LeaseReceived && r.mem.permitRequested && o.now.Boot-r.mem.sentAt >= o.cfg.Heartbeat {
			o.requestPermit(r)
		}
	}
}

// A renewGroup identifies what one Renew covers: leases of one queue have the same length.
type renewGroup struct {
	home  proto.PeerID
	queue string
}

// renew sends the Renews of each queue to its home, and forgets those that no home answers.
func (o *Owner) renew() {
	for home, open := range o.openRenews {
		if len(open) == 0 || o.now.Boot-open[len(open)-1].sent > o.cfg.MessageLifetime {
			delete(o.openRenews, home)
		}
	}
	var order []renewGroup // in the order in which they came
	all := map[renewGroup][]claim{}
	for r := range each[*run](o.live) {
		switch {
		case r.orphan, r.mem.stalled:
			continue
		case r.phase == proto.LeaseReceived && r.claim.boot == o.boot,
			r.phase == proto.LeaseStarted && (r.mem.alive || r.mem.probing),
			r.phase == proto.LeaseFinished:
			k := renewGroup{r.home, r.queue}
			if all[k] == nil {
				order = append(order, k)
			}
			all[k] = append(all[k], r.claim)
		}
	}
	for _, k := range order {
		for claims := range slices.Chunk(all[k], proto.MaxGroup) {
			o.sendRenew(k.home, claims)
		}
	}
	o.askSettled()
}

// sendRenew renews leases of one home, and asks for the bodies that are needed.
func (o *Owner) sendRenew(home proto.PeerID, claims []claim) {
	o.number++
	m := &proto.Renew{Number: o.number, Claims: make([]*proto.Claim, len(claims))}
	for i, k := range claims {
		m.Claims[i] = k.message()
		m.Claims[i].Fetch = o.runs[k.task].mem.fetching
	}
	open := append(o.openRenews[home], renewal{o.number, o.now.Boot, claims})
	o.openRenews[home] = open[max(len(open)-maxOpenRenews, 0):]
	o.out.send(home, proto.TypeRenew, m)
}

// Fetch records whether the body of a granted task is needed. The home is asked for it at
// once, and then with each renewal.
func (o *Owner) Fetch(id proto.TaskID, on bool, now Now) Output {
	out := o.beginInput(now)
	r := o.runs[id]
	if r == nil || r.mem.fetching == on {
		return *out
	}
	if r.mem.fetching = on; on {
		o.sendRenew(r.home, []claim{r.claim})
	}
	return *out
}

// Return releases a lease that was not started.
func (o *Owner) Return(id proto.TaskID, reason string, retryAfterMs uint64, now Now) Output {
	out := o.beginInput(now)
	if r := o.runs[id]; r != nil && r.phase == proto.LeaseReceived && !r.mem.permitRequested {
		o.release(r, proto.Unstarted, reason, retryAfterMs)
	}
	return *out
}

// OnRenewed takes the answer to a Renew: every lease that it does not refuse lasts one
// period from when the Renew was sent.
func (o *Owner) OnRenewed(from proto.PeerID, m *proto.Renewed, now Now) Output {
	out := o.beginInput(now)
	open := o.openRenews[from]
	at := slices.IndexFunc(open, func(r renewal) bool { return r.number == m.GetNumber() })
	if at < 0 {
		o.out.ignored(proto.TaskID{}, from, proto.Seq{}, "an answer to an unknown renewal, or a second one")
		return *out
	}
	refused := map[string]bool{}
	for _, x := range m.GetRulings() {
		if x.GetCode() != proto.CodeOK {
			refused[string(x.GetTask())] = true
		}
	}
	for _, k := range open[at].claims {
		if r := o.runs[k.task]; r != nil && r.claim.epoch == k.epoch && r.home == from && !refused[string(k.task[:])] {
			r.mem.leaseUntil = max(r.mem.leaseUntil, open[at].sent+msec(uint64(m.GetLeaseMs())))
			r.mem.warned = r.mem.warned && o.now.Boot >= r.mem.leaseUntil-o.cfg.Margin
			r.mem.unknownSince = 0
		}
	}
	o.openRenews[from] = slices.Delete(open, at, at+1)
	for _, x := range m.GetRulings() {
		if r := o.runForRuling(from, x); r != nil && r.phase != proto.LeaseReleased {
			o.handleRefusal(r, x)
		}
	}
	o.raiseWatermark(from, proto.Seq{Boot: m.SettledBoot, Counter: m.SettledCounter})
	return *out
}

// maxSweep is how many closed leases one tick forgets. A node closes fewer in a second.
const maxSweep = 16_384

// sweep forgets closed leases when every copy of their grant is refused, and writes the
// watermark that refuses them in the same batch (I12).
func (o *Owner) sweep() {
	var old []*run
	for e := o.live.Front(); e != nil && len(old) < maxSweep; e = e.Next() {
		r := e.Value.(*run)
		if r.phase != proto.LeaseClosed || r.mem.alive {
			continue
		}
		if r.mem.closedAt == 0 {
			r.mem.closedAt = max(o.now.Boot, 1)
		}
		switch {
		case r.claim.gen > 1, r.orphan: // copies of grants of its earlier homes, or later grants, may exist, which watermarks do not cover
			if o.now.Boot-r.mem.closedAt < o.cfg.MessageLifetime {
				continue
			}
			o.raiseWatermark(r.grantedBy, r.claim.epoch)
		case o.now.past(o.cfg.resultDeadline(r.notAfter) + o.cfg.Skew.Milliseconds()):
			o.raiseWatermark(r.grantedBy, r.claim.epoch) // no copy of the grant is accepted again, whatever the clock shows
		}
		if r.claim.epoch.Compare(o.watermarks[r.grantedBy]) <= 0 {
			old = append(old, r)
		}
	}
	written := map[proto.PeerID]bool{}
	for _, r := range old {
		if mark := o.watermarks[r.grantedBy]; !written[r.grantedBy] && mark != (proto.Seq{}) {
			written[r.grantedBy] = true
			o.out.put(string(rune(keyWatermark))+string(r.grantedBy[:]), &proto.HomeMark{Home: r.grantedBy[:], SettledBoot: mark.Boot, SettledCounter: mark.Counter})
		}
		o.forget(r)
		o.out.drop(taskKey(keyOwner, r.claim.task))
	}
}

// Stop releases, at a graceful stop, the leases that wait here. The driver stops the
// handlers and reports the end of each with [Owner.Fail] and CauseStopped.
func (o *Owner) Stop(now Now) Output {
	out := o.beginInput(now)
	for r := range each[*run](o.live) {
		if r.phase == proto.LeaseReceived {
			o.release(r, proto.Unstarted, "the node is stopping", 0)
		}
	}
	return *out
}
