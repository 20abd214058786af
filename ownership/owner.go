package ownership

import (
	"bytes"
	"container/list"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// An Owner keeps the leases that were granted to this node: it stores each step before it
// acts on it, renews the leases of running handlers, and delivers results.
//
// After [NewOwner] it is given what is on disk ([Owner.Load]), then [Owner.Begin]
// once, then inputs.
type Owner struct {
	cfg           Config
	boot          proto.BootID
	now           Now
	out           Output // of the current input
	runs          map[proto.TaskID]*run
	live          *list.List // of *run, in the order in which they came
	watermarks    map[proto.PeerID]proto.Seq
	openRenews    map[proto.PeerID][]renewal
	number        uint64                     // of the newest Renew
	renewedAt     time.Duration              // time of the last renewal, by Boot
	declined      map[proto.TaskID]proto.Seq // a copy of a declined grant is declined too
	unknownLeases map[proto.PeerID]int       // leases that this node never had, by the node that asked about them
	leases        map[proto.PeerID]int       // all others, by the home that granted them
}

// A renewal is an unanswered Renew.
type renewal struct {
	number uint64
	sent   time.Duration // of Boot
	claims []claim
}

// A run is a lease of this node. The fields above mem are on disk.
type run struct {
	claim       claim
	home        proto.PeerID
	grantedBy   proto.PeerID // whose watermark covers the epoch
	queue       string
	phase       proto.LeasePhase
	mode        proto.Mode
	stop        bool // the handler stops when the lease may be over
	attempt     uint32
	notAfter    int64           // by this node's wall clock, Unix milliseconds: how long it is kept
	until       time.Duration   // the same moment by Boot: not started after it
	machine     uint32          // the machine start that until counts from
	state       proto.TaskState // of the result
	digest      []byte
	orphan      bool
	cause       proto.ReleaseCause
	reason      string
	maxAttempts uint32 // set by the handler; 0: the home decides

	mem runMem
}

// A runMem is the part of a run that is only in memory.
type runMem struct {
	elem            *list.Element
	alive           bool // a handler of this process is running
	probing         bool // a handler is asked what an earlier one did
	permitRequested bool // a permit to start was requested
	regranted       bool // a newer grant was taken while an older one waited, and may not be on disk
	warned          bool
	stalled         bool
	stopped         bool
	killed          bool          // it was told to stop at once
	hung            bool          // it was stopped because it reported no progress
	fetching        bool          // waiting for the body of the task
	reportsProgress bool          // the handler reports progress
	leaseUntil      time.Duration // the lease lasts at least until then, by Boot
	progressAt      time.Duration // time of the last progress, by Boot
	sentAt          time.Duration // when an unanswered message was last sent, by Boot
	closedAt        time.Duration // since when it is closed, by Boot
	unknownSince    time.Duration // since when its home has not known the task, by Boot
	retryAfterMs    uint64        // of a release
	unknown         bool          // this node never had it, and was asked about it
	countedFor      proto.PeerID  // the node that granted it, or asked about it
}

// NewOwner returns the owner of a node with the boot id of this start.
func NewOwner(boot proto.BootID, cfg Config) *Owner {
	return &Owner{
		cfg: cfg.withDefaults(), boot: boot, runs: map[proto.TaskID]*run{}, live: list.New(),
		watermarks: map[proto.PeerID]proto.Seq{}, openRenews: map[proto.PeerID][]renewal{}, declined: map[proto.TaskID]proto.Seq{}, unknownLeases: map[proto.PeerID]int{}, leases: map[proto.PeerID]int{},
	}
}

func (o *Owner) beginInput(now Now) *Output {
	o.now, o.out = now, Output{}
	return &o.out
}

func (o *Owner) event(kind EventKind, r *run, cause wire.LeaseCause) {
	o.emit(Event{Kind: kind, Cause: cause}, r)
}

// emit emits an event of r.
func (o *Owner) emit(e Event, r *run) {
	e.Task, e.Queue, e.Peer, e.Epoch, e.Attempt = r.claim.task, r.queue, r.home, r.claim.epoch, r.attempt
	o.out.Events = append(o.out.Events, e)
}

// Load takes a record of the Leases bucket that was found at start. It ignores records of
// other kinds.
func (o *Owner) Load(key string, val []byte) error {
	if key == "" {
		return nil
	}
	switch key[0] {
	case keyOwner:
		m := new(proto.OwnerLease)
		if err := proto.Decode(val, m); err != nil {
			return err
		}
		if k, ok := claimFrom(m.Claim); ok {
			r := &run{
				claim: k, queue: m.Queue, phase: m.Phase, mode: m.Mode, stop: m.OnLostLease == onLostStop, attempt: m.Attempt,
				notAfter: m.NotAfterMs, until: time.Duration(m.NotAfterBootMs) * time.Millisecond, machine: m.Machine, state: m.State, digest: m.Digest, orphan: m.Orphan, cause: m.Cause, reason: m.Reason, maxAttempts: m.MaxAttempts,
			}
			copy(r.home[:], m.Home)
			copy(r.grantedBy[:], m.GrantedBy)
			o.add(r)
		}
	case keyWatermark:
		m := new(proto.HomeMark)
		if err := proto.Decode(val, m); err != nil {
			return err
		}
		if p, err := proto.PeerIDFrom(m.Home); err == nil {
			o.watermarks[p] = proto.Seq{Boot: m.SettledBoot, Counter: m.SettledCounter}
		}
	}
	return nil
}

// onLostStop is the setting of a queue whose handlers stop when their lease may be over.
const onLostStop = "stop"

func (o *Owner) add(r *run) {
	o.runs[r.claim.task] = r
	r.mem.elem = o.live.PushBack(r)
	r.mem.unknown, r.mem.countedFor = r.notAfter == 0, r.grantedBy
	o.counts(r)[r.grantedBy]++
}

func (o *Owner) forget(r *run) {
	o.live.Remove(r.mem.elem)
	delete(o.runs, r.claim.task)
	p, n := r.mem.countedFor, o.counts(r)
	if n[p]--; n[p] == 0 {
		delete(n, p)
	}
}

// counts returns where r is counted.
func (o *Owner) counts(r *run) map[proto.PeerID]int {
	if r.mem.unknown {
		return o.unknownLeases
	}
	return o.leases
}

func (o *Owner) put(r *run) {
	m := &proto.OwnerLease{
		Claim: r.claim.message(), Home: r.home[:], Queue: r.queue, Phase: r.phase, Mode: r.mode, Attempt: r.attempt, NotAfterMs: r.notAfter, NotAfterBootMs: r.until.Milliseconds(), Machine: r.machine,
		State: r.state, Digest: r.digest, Cause: r.cause, Reason: r.reason, Orphan: r.orphan, GrantedBy: r.grantedBy[:], MaxAttempts: r.maxAttempts,
	}
	if r.stop {
		m.OnLostLease = onLostStop
	}
	o.out.put(taskKey(keyOwner, r.claim.task), m)
}

// A Policy is what to do with a task whose node died while it ran (I7).
type Policy byte

// The policies.
const (
	PolicyRetry Policy = iota // run it again: its effect may happen twice
	PolicyProbe               // ask the handler whether the effect has happened
	PolicyPark                // an operator decides
)

// Begin settles the leases of earlier starts of this node, whose processes are gone. A
// lease that had certainly not started is released at no cost, one that may have started
// early counts as abandoned, one that was running is handled by its handler's policy, and
// results are sent again.
func (o *Owner) Begin(policy func(proto.TaskID) Policy, now Now) Output {
	out := o.beginInput(now)
	for r := range each[*run](o.live) {
		switch r.phase {
		case proto.LeaseReceived:
			if mayStartEarly(r) {
				o.release(r, proto.CauseCrashed, "the node died, and it may have been started there", 0)
			} else {
				o.release(r, proto.Unstarted, "the node was restarted", 0)
			}
		case proto.LeaseStarted:
			o.crashed(r, policy(r.claim.task))
		}
	}
	o.resendAll()
	return *out
}

// crashed settles a lease whose handler died with the process.
func (o *Owner) crashed(r *run, p Policy) {
	o.event(EventCrashed, r, "")
	switch {
	case r.mode == proto.AtMostOnce:
		o.release(r, proto.CauseCrashed, "the node died while it ran", 0)
	case p == PolicyProbe:
		r.mem.probing = true
		o.out.Probes = append(o.out.Probes, r.claim.task)
	case p == PolicyPark:
		o.release(r, proto.CauseParked, "the node died while it ran", 0)
	default:
		o.release(r, proto.CauseCrashed, "the node died while it ran", 0)
	}
}

// Probed takes the answer of a probed handler: done, with the digest of its result, not
// done, or unknown.
func (o *Owner) Probed(id proto.TaskID, done, unknown bool, digest []byte, now Now) Output {
	out := o.beginInput(now)
	r := o.runs[id]
	if r == nil || r.phase != proto.LeaseStarted || r.mem.alive {
		return *out
	}
	r.mem.probing = false
	switch {
	case unknown:
		o.release(r, proto.CauseParked, "the node died while it ran, and its handler cannot tell how far it came", 0)
	case done:
		o.finish(r, proto.Success, digest)
	default:
		o.release(r, proto.CauseCrashed, "the node died while it ran; its handler reports that nothing was done", 0)
	}
	return *out
}

// OnGrant accepts a grant or declines it. code is not zero when this node does not want it
// now; nothing is stored then. The answer is sent once the lease is on disk.
func (o *Owner) OnGrant(from proto.PeerID, m *proto.Grant, code proto.Code, now Now) Output {
	out := o.beginInput(now)
	k, ok := claimFrom(m.GetClaim())
	if !ok {
		return *out
	}
	o.raiseWatermark(from, proto.Seq{Boot: m.SettledBoot, Counter: m.SettledCounter})
	r := o.runs[k.task]
	switch {
	case k.boot != (proto.BootID{}) && k.boot != o.boot && (r == nil || r.claim.epoch != k.epoch):
		o.out.ignored(k.task, from, k.epoch, "a grant for an earlier start of this node")
		o.decline(from, k, proto.CodeBusy, "it is for an earlier start of this node", proto.Seq{})
	case r == nil && k.epoch.Compare(o.watermarks[from]) <= 0:
		o.out.Events = append(o.out.Events, Event{Kind: EventRefused, Task: k.task, Queue: m.Queue, Peer: from, Epoch: k.epoch, Cause: wire.LeaseEpochSettled, Attempt: m.Attempt})
		o.decline(from, k, proto.CodeStale, "an old copy", proto.Seq{})
	case r == nil && code != proto.CodeOK:
		o.out.ignored(k.task, from, k.epoch, "a grant that is not taken: "+code.Name())
		o.decline(from, k, code, "", proto.Seq{})
	case o.declined[k.task] == k.epoch && (r == nil || r.claim.epoch != k.epoch):
		o.decline(from, k, proto.CodeBusy, "it was declined before", proto.Seq{})
	case r == nil:
		o.takeLease(from, k, m)
	default:
		o.regrant(r, from, k, m, code)
	}
	return *out
}

func (o *Owner) decline(from proto.PeerID, k claim, code proto.Code, detail string, seen proto.Seq) {
	if len(o.declined) >= maxDeclined {
		clear(o.declined)
	}
	if k.epoch.Compare(o.declined[k.task]) > 0 {
		o.declined[k.task] = k.epoch
	}
	k.boot = o.boot
	t := &proto.Taken{Claim: k.message(), Code: code, Detail: detail, SeenBoot: seen.Boot, SeenCounter: seen.Counter}
	o.out.send(from, proto.TypeGranted, &proto.Granted{Taken: []*proto.Taken{t}})
}

// maxDeclined is how many declined epochs are remembered. Accepting one after all only
// wastes work: its home has granted the task again.
const maxDeclined = 4096

func (o *Owner) storeAndAck(r *run) {
	o.put(r)
	o.ack(r)
}

func (o *Owner) ack(r *run) {
	o.out.send(r.home, proto.TypeGranted, &proto.Granted{Taken: []*proto.Taken{{Claim: r.claim.message()}}})
}

// takeLease creates a lease.
func (o *Owner) takeLease(from proto.PeerID, k claim, m *proto.Grant) {
	k.boot = o.boot
	r := &run{
		claim: k, home: from, grantedBy: from, queue: proto.Clip(m.Queue, 128), phase: proto.LeaseReceived, mode: m.Mode,
		stop: m.OnLostLease == onLostStop, attempt: m.Attempt,
	}
	o.setLeft(r, m)
	r.mem.leaseUntil = o.now.Boot + msec(uint64(m.LeaseMs))
	o.add(r)
	o.storeAndAck(r)
	o.out.Waits = append(o.out.Waits, r.claim.task)
}

// setLeft sets when the time of r ends: the home tells how much is left, which counts on
// the boot clock.
func (o *Owner) setLeft(r *run, m *proto.Grant) {
	left := max(m.LeftMs, 0)
	r.notAfter, r.until, r.machine = o.now.Wall+left, o.now.Boot+msec(uint64(left)), o.cfg.Machine
}

// over reports whether r may not be started any more. The boot clock does not tell after
// a restart of the machine.
func (o *Owner) over(r *run) bool {
	if r.machine == o.cfg.Machine {
		return o.now.Boot > r.until
	}
	return o.now.past(r.notAfter)
}

// regrant takes a grant for a task that is known here. A higher epoch of a task that runs,
// or has a result, is adopted: nothing is started twice.
func (o *Owner) regrant(r *run, from proto.PeerID, k claim, m *proto.Grant, code proto.Code) {
	k.boot = o.boot
	lower := k.epoch.Compare(r.claim.epoch) < 0 || k.gen < r.claim.gen
	closed := r.phase == proto.LeaseClosed
	switch {
	case lower:
		o.event(EventRefused, r, wire.LeaseNewerKnown)
		o.decline(from, k, proto.CodeStale, "a higher epoch is known here", r.claim.epoch)
	case k.epoch == r.claim.epoch && (k.token != r.claim.token || from != r.home && k.gen <= r.claim.gen):
		o.event(EventForged, r, wire.LeaseGrantDiffers)
		o.decline(from, k, proto.CodeStale, "another grant of this epoch is known here", r.claim.epoch)
	case k.epoch == r.claim.epoch:
		o.sameEpoch(r, from, k)
	case from != r.home && !mayRegrant(code):
		o.decline(from, k, code, "", proto.Seq{})
	case r.phase == proto.LeaseFinished, r.mem.alive, r.phase == proto.LeaseReceived && r.claim.boot == o.boot:
		o.adopt(r, from, k, m)
	case startedOnce(r):
		r.claim, r.home, r.grantedBy = k, from, from
		o.release(r, proto.CauseCrashed, "it was started here before", 0)
	case closed && r.state == proto.Success:
		// Its result counted, and the home that grants it again has lost that. Or it did
		// not count and this is an old grant; then that home rejects the release.
		r.claim, r.home, r.grantedBy, r.orphan = k, from, from, false
		o.release(r, proto.CauseParked, "it succeeded here before, and its home has lost that", 0)
	case r.phase == proto.LeaseStarted: // its process died; a probe may be under way
		o.decline(from, k, proto.CodeBusy, "an earlier start is being checked", proto.Seq{})
	case code != proto.CodeOK:
		o.decline(from, k, code, "", proto.Seq{})
	default: // released or closed: treated like a new lease
		o.forget(r)
		o.takeLease(from, k, m)
		o.runs[k.task].mem.regranted = true // the wait of the old one for a slot may not have ended yet
	}
}

// mayRegrant reports whether a grant with this code comes from a node that may grant at
// all. Otherwise a lease must not move to that node.
func mayRegrant(code proto.Code) bool {
	switch code {
	case proto.CodeOK, proto.CodeBusy, proto.CodeFull, proto.CodeDraining, proto.CodeNoHandler:
		return true
	}
	return false
}

// everStarted reports whether the handler of r was ever started here.
func everStarted(r *run) bool {
	switch r.phase {
	case proto.LeaseStarted, proto.LeaseFinished:
		return true
	case proto.LeaseReleased, proto.LeaseClosed:
		switch r.cause {
		case proto.Unstarted, proto.CauseExpired, proto.CauseUnknown:
			return false // a home that granted it again had given no permit
		}
		return true
	}
	return false
}

// sameEpoch answers a copy of a grant.
func (o *Owner) sameEpoch(r *run, from proto.PeerID, k claim) {
	o.followHome(r, from, k.gen)
	switch r.phase {
	case proto.LeaseReleased, proto.LeaseFinished:
		r.mem.sentAt = 0
		o.resend(r)
	case proto.LeaseClosed:
		o.event(EventRefused, r, wire.LeaseOverHere)
	default:
		o.ack(r)
	}
}

// adopt continues the work under a newer grant.
func (o *Owner) adopt(r *run, from proto.PeerID, k claim, m *proto.Grant) {
	r.claim, r.home, r.grantedBy, r.orphan = k, from, from, false
	if r.phase == proto.LeaseClosed {
		r.phase = proto.LeaseStarted // it is being stopped, and reports that under this epoch
	}
	r.mem.leaseUntil, r.mem.warned, r.mem.sentAt = o.now.Boot+msec(uint64(m.LeaseMs)), false, 0
	if r.phase == proto.LeaseReceived {
		r.attempt, r.mem.regranted = m.Attempt, true
		o.setLeft(r, m)
	} else {
		o.event(EventAdopted, r, "")
	}
	o.storeAndAck(r)
	o.resend(r)
	if r.mem.permitRequested {
		o.requestPermit(r)
	}
}

// followHome records a new home of r. The sender knows epoch and token, or is the former
// home.
func (o *Owner) followHome(r *run, home proto.PeerID, gen uint64) {
	if gen <= r.claim.gen || home == r.home {
		r.claim.gen = max(r.claim.gen, gen)
		return
	}
	r.claim.gen, r.home, r.mem.sentAt = gen, home, 0
	o.put(r)
	o.event(EventHomeMoved, r, "")
}

// raiseWatermark records that a home sends no more grants up to mark.
func (o *Owner) raiseWatermark(home proto.PeerID, mark proto.Seq) {
	if mark.Compare(o.watermarks[home]) > 0 && mark.Boot <= maxBoot {
		o.watermarks[home] = mark
	}
}

// release gives the lease back. That is on disk before it is sent: this epoch will never be
// started here.
func (o *Owner) release(r *run, cause proto.ReleaseCause, reason string, retry uint64) {
	r.phase, r.cause, r.reason = proto.LeaseReleased, cause, proto.Clip(reason, proto.MaxReason)
	r.mem.alive, r.mem.permitRequested, r.mem.retryAfterMs, r.mem.sentAt = false, false, retry, 0
	o.put(r)
	o.resend(r)
}

// finish stores a result.
func (o *Owner) finish(r *run, state proto.TaskState, digest []byte) {
	r.phase, r.state, r.digest = proto.LeaseFinished, state, bytes.Clone(digest)
	r.mem.alive, r.mem.sentAt = false, 0
	o.put(r)
	o.resend(r)
}

// resend sends an unanswered result or release.
func (o *Owner) resend(r *run) {
	switch {
	case r.mem.sentAt > 0 && o.now.Boot-r.mem.sentAt < o.resendInterval(r):
		return
	case r.phase == proto.LeaseFinished:
		o.out.Sends = append(o.out.Sends, Send{To: r.home, Type: proto.TypeResult, Task: r.claim.task, Body: r.outcome()})
	case r.phase == proto.LeaseReleased:
		m := &proto.Released{Claim: r.claim.message(), Cause: r.cause, Reason: r.reason, RetryAfterMs: r.mem.retryAfterMs, MaxAttempts: r.maxAttempts}
		o.out.send(r.home, proto.TypeRelease, &proto.Release{Released: []*proto.Released{m}})
	default:
		return
	}
	r.mem.sentAt = max(o.now.Boot, 1)
}

// resendInterval returns how long to wait for an answer. A result that does not count is
// still offered at times: the task may come back.
func (o *Owner) resendInterval(r *run) time.Duration {
	if r.orphan {
		return 4 * o.cfg.Lease
	}
	return o.cfg.Heartbeat
}
