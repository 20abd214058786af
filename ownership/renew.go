package ownership

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// keptRenewals is how many unanswered Renews of a home are remembered.
const keptRenewals = 256

// Tick is called about once a second. It renews what handlers work on, says again
// what was not answered, and has handlers stopped whose lease may be over.
func (o *Owner) Tick(now Now) Output {
	out := o.step(now)
	o.pace()
	o.resend()
	if o.beaten == 0 || now.Boot-o.beaten >= o.cfg.Heartbeat {
		o.beaten = max(now.Boot, 1)
		o.renew()
	}
	o.sweep()
	return *out
}

// pace looks at the handlers: does each make progress, and is its lease still good.
func (o *Owner) pace() {
	for e := o.live.Front(); e != nil; e = e.Next() {
		r := e.Value.(*run)
		if r.mem.asked && r.phase == proto.LeaseReceived && o.now.Boot >= r.mem.until { // its slot is for others
			o.release(r, proto.Unstarted, "its home gave no leave to start before the lease was over", 0)
		}
		if !r.mem.alive || r.phase != proto.LeaseStarted {
			continue
		}
		if r.mem.paces && !r.mem.stalled && o.now.Boot-r.mem.moved >= o.cfg.StallAfter {
			r.mem.stalled = true
			o.event(EventStalled, r, "no progress for "+(o.now.Boot-r.mem.moved).Round(time.Second).String())
			if o.cfg.flaw != stallRenewed && !r.mem.stopped {
				r.mem.stopped = true
				o.out.Stops = append(o.out.Stops, Stop{Task: r.task, Cause: "it showed no progress"})
			}
		}
		if !r.mem.warned && o.now.Boot >= r.mem.until-o.cfg.Margin {
			r.mem.warned = true
			o.event(EventLost, r, "it could not be renewed")
			if r.stop && !r.mem.stopped {
				r.mem.stopped = true
				o.out.Stops = append(o.out.Stops, Stop{Task: r.task, Cause: "the lease could not be renewed, and on_lost_lease is stop"})
			}
		}
	}
}

// resend says again what was not answered.
func (o *Owner) resend() {
	for e := o.live.Front(); e != nil; e = e.Next() {
		r := e.Value.(*run)
		o.speak(r)
		if r.phase == proto.LeaseReceived && r.mem.asked && o.now.Boot-r.mem.sent >= o.cfg.Heartbeat {
			o.askLeave(r)
		}
	}
}

// A renewable is what one Renew is about: leases of one queue last as long.
type renewable struct {
	home  proto.PeerID
	queue string
}

// renew sends one Renew, or as many as fit, for each queue to its home.
func (o *Owner) renew() {
	var order []renewable // in which they were met
	all := map[renewable][]claim{}
	for e := o.live.Front(); e != nil; e = e.Next() {
		r := e.Value.(*run)
		switch {
		case r.orphan, r.mem.stalled && o.cfg.flaw != stallRenewed:
			continue
		case r.phase == proto.LeaseReceived && r.boot == o.boot,
			r.phase == proto.LeaseStarted && (r.mem.alive || r.mem.probing),
			r.phase == proto.LeaseFinished:
			k := renewable{r.home, r.queue}
			if all[k] == nil {
				order = append(order, k)
			}
			all[k] = append(all[k], r.claim)
		}
	}
	for _, k := range order {
		home := k.home
		for claims := range slices.Chunk(all[k], proto.MaxGroup) {
			o.sendRenew(home, claims)
		}
	}
}

// sendRenew renews leases of one home, and asks for the bodies that are awaited.
func (o *Owner) sendRenew(home proto.PeerID, claims []claim) {
	o.number++
	m := &proto.Renew{Number: o.number, Claims: make([]*proto.Claim, len(claims))}
	for i, k := range claims {
		m.Claims[i] = k.message()
		m.Claims[i].Fetch = o.runs[k.task].mem.fetches
	}
	open := append(o.renews[home], renewal{o.number, o.now.Boot, claims})
	o.renews[home] = open[max(len(open)-keptRenewals, 0):]
	o.out.send(home, proto.TypeRenew, m)
}

// Fetch notes that the body of a task that was granted here is awaited, or no more.
// The home is asked for it at once, and then with each renewal.
func (o *Owner) Fetch(id proto.TaskID, on bool, now Now) Output {
	out := o.step(now)
	r := o.runs[id]
	if r == nil || r.mem.fetches == on {
		return *out
	}
	if r.mem.fetches = on; on {
		o.sendRenew(r.home, []claim{r.claim})
	}
	return *out
}

// Return gives a lease back that was not started, and will not be.
func (o *Owner) Return(id proto.TaskID, reason string, retryAfterMs uint64, now Now) Output {
	out := o.step(now)
	if r := o.runs[id]; r != nil && r.phase == proto.LeaseReceived && !r.mem.asked {
		o.release(r, proto.Unstarted, reason, retryAfterMs)
	}
	return *out
}

// OnRenewed takes the answer to a Renew: every lease that it does not refuse lasts a
// period from when the Renew was sent.
func (o *Owner) OnRenewed(from proto.PeerID, m *proto.Renewed, now Now) Output {
	out := o.step(now)
	open := o.renews[from]
	at := slices.IndexFunc(open, func(r renewal) bool { return r.number == m.GetNumber() })
	if at < 0 {
		o.unheeded(proto.TaskID{}, from, proto.Seq{}, "an answer to no renewal, or answered before")
		return *out
	}
	refused := map[string]bool{}
	for _, x := range m.GetRulings() {
		if x.GetCode() != proto.CodeOK {
			refused[string(x.GetTask())] = true
		}
	}
	for _, k := range open[at].claims {
		if r := o.runs[k.task]; r != nil && r.epoch == k.epoch && r.home == from && !refused[string(k.task[:])] {
			r.mem.until = max(r.mem.until, open[at].sent+msec(uint64(m.GetLeaseMs())))
			r.mem.warned = r.mem.warned && o.now.Boot >= r.mem.until-o.cfg.Margin
			r.mem.unknown = 0
		}
	}
	o.renews[from] = slices.Delete(open, at, at+1)
	for _, x := range m.GetRulings() {
		if r := o.ruled(from, x); r != nil && r.phase != proto.LeaseReleased {
			o.refused(r, x)
		}
	}
	o.settle(from, proto.Seq{Boot: m.SettledBoot, Counter: m.SettledCounter})
	return *out
}

// maxSwept is how many closed leases one tick forgets. A node ends fewer in a second.
const maxSwept = 16_384

// sweep forgets closed leases of which every copy of the grant is refused, and with
// them writes the mark that refuses (I12).
func (o *Owner) sweep() {
	var old []*run
	for e := o.live.Front(); e != nil && len(old) < maxSwept; e = e.Next() {
		r := e.Value.(*run)
		if r.phase != proto.LeaseClosed || r.mem.alive {
			continue
		}
		if r.mem.closed == 0 {
			r.mem.closed = max(o.now.Boot, 1)
		}
		switch {
		case r.gen > 1, r.orphan: // copies of grants of its earlier homes, or later grants, may live, and marks say nothing about those
			if o.now.Boot-r.mem.closed < o.cfg.Linger {
				continue
			}
			o.settle(r.giver, r.epoch)
		case o.now.past(o.cfg.lastWord(r.notAfter) + o.cfg.Skew.Milliseconds()):
			o.settle(r.giver, r.epoch) // whatever the clock says, no copy of the grant is taken again
		}
		if r.epoch.Compare(o.marks[r.giver]) <= 0 {
			old = append(old, r)
		}
	}
	written := map[proto.PeerID]bool{}
	for _, r := range old {
		if mark := o.marks[r.giver]; !written[r.giver] && mark != (proto.Seq{}) {
			written[r.giver] = true
			o.out.put(string(rune(keyPast))+string(r.giver[:]), &proto.HomeMark{Home: r.giver[:], SettledBoot: mark.Boot, SettledCounter: mark.Counter})
		}
		o.forget(r)
		o.out.drop(taskKey(keyOwner, r.task))
	}
}

// Stop gives back, at a graceful stop, what waits here. Handlers are stopped by the
// driver, which tells the end of each by [Owner.Fail] with STOPPED.
func (o *Owner) Stop(now Now) Output {
	out := o.step(now)
	for e := o.live.Front(); e != nil; e = e.Next() {
		if r := e.Value.(*run); r.phase == proto.LeaseReceived {
			o.release(r, proto.Unstarted, "the node is stopping", 0)
		}
	}
	return *out
}
