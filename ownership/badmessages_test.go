package ownership

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// A victim is a driver that gets bad messages from members, as bytes. It is the home of
// queue q, in which one task is leased to owner and another waits, and the owner of a task
// of queue far, whose home is another node. It records what it sends.
type victim struct {
	t      *testing.T
	driver *Driver
	store  *store.Store
	posts  []posted
	events []Event
	task   proto.TaskID // leased to owner
	waits  proto.TaskID // never granted: no member serves its kind
	mine   proto.TaskID // leased to the victim by far's home
	lease  *proto.Claim // of task, as its owner sends it
	grant  *proto.Grant // of mine
	sent   proto.PeerID // the home to which tasks of handoffs were sent
	offers []BodyOffer  // bodies that were offered
	code   proto.Code   // answer of the runner to grants
}

type posted struct {
	to   proto.PeerID
	typ  proto.MessageType
	body proto.Body
}

// The members: the first ones are admins.
var (
	vSelf, vFar, vOther, vOwner, vStranger = peerOf(0), peerOf(1), peerOf(2), peerOf(5), peerOf(6)
	vTask, vWaits, vMine, vGiven           = testTaskID(1), testTaskID(2), testTaskID(3), testTaskID(4)
	vBoot, vOwnerBoot, vCloneBoot          = proto.BootID{1}, proto.BootID{2}, proto.BootID{3}
)

func (v *victim) Behind(proto.PeerID, int) bool { return false }

func (v *victim) Post(p proto.PeerID, t proto.MessageType, m proto.Body) {
	v.posts = append(v.posts, posted{p, t, m})
}
func (v *victim) Tasks() ([]Task, error) { return nil, nil }
func (v *victim) Envelope(id proto.TaskID, _ proto.PeerID) (*proto.Envelope, error) {
	return &proto.Envelope{Header: id[:]}, nil
}
func (v *victim) End(ctx context.Context, _ End, _ *proto.Outcome, also func(*store.Batch)) error {
	var b store.Batch
	also(&b)
	return v.store.Apply(ctx, &b)
}
func (v *victim) Check(proto.PeerID, *proto.Grant) proto.Code { return v.code }
func (v *victim) Wait(proto.PeerID, *proto.Grant)             {}
func (v *victim) Stop(proto.TaskID, bool, bool)               {}
func (v *victim) Probe(proto.PeerID, *proto.Grant)            {}
func (v *victim) Seal(_ proto.PeerID, all []SealRequest) ([]*proto.Envelope, error) {
	return make([]*proto.Envelope, len(all)), nil
}
func (v *victim) Unseal(_ proto.PeerID, m *proto.Message) (Unsealed, error) {
	e, o := new(proto.Envelope), new(proto.Outcome)
	if err := proto.Decode(m.GetPayload(), e); err != nil {
		return Unsealed{}, err
	}
	id, err := proto.TaskIDFrom(e.GetHeader())
	if err != nil {
		return Unsealed{}, err
	}
	return Unsealed{Task: id, Outcome: o}, proto.Decode(e.GetBody(), o)
}
func (v *victim) Offer(id proto.TaskID, owner proto.PeerID) {
	v.offers = append(v.offers, BodyOffer{id, owner})
}
func (v *victim) SendBodyFirst(_ proto.PeerID, _ proto.MessageType, _ proto.TaskID, _ *proto.Envelope, after func()) {
	after()
}
func (v *victim) Forget(proto.TaskID, *proto.Outcome) {}
func (v *victim) Adopt(*proto.Handoff) (func(*store.Batch), func(), error) {
	return func(*store.Batch) {}, func() {}, nil
}
func (v *victim) HandedOff([]proto.TaskID, proto.PeerID) {}

// vMover checks handoffs: the envelope of a task contains its id.
type vMover struct{ *victim }

func (m vMover) Check(_ proto.PeerID, h *proto.Handoff) (Task, error) {
	id, err := proto.TaskIDFrom(h.GetTask().GetEnvelope().GetHeader())
	return Task{ID: id, Sent: m.sent, Queue: h.GetLease().GetQueue(), Kind: "nobody", NotAfter: 1 << 50}, err
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	v := &victim{t: t, task: vTask, waits: vWaits, mine: vMine, sent: vFar}
	s, err := store.Open(mem.New(), store.Config{SweepEvery: -1, CompactEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	v.store = s
	v.driver, err = Open(s, Parts{Network: v, Custody: v, Runner: v, Prober: v, Sealer: v, Mover: vMover{v}, Bodies: v}, Settings{
		Config: Config{Random: func(b []byte) { rand.Read(b) }, Deeds: simDeeds{newSim(1).nodes[0]}},
		Self:   vSelf, Boot: 100, BootID: vBoot, Clock: clock.System(), Events: func(all []Event) { v.events = append(v.events, all...) },
	})
	if err != nil {
		t.Fatal(err)
	}
	d := v.driver
	d.merge(d.home.Begin(d.now()))
	d.merge(d.owner.Begin(d.records.policy, d.now()))
	d.merge(d.home.SetQueue(func(*proto.QueueState) {}, d.now(), "q"))
	d.merge(d.home.SetNode(Node{Member: dispatch.Member{Peer: vOwner, Alive: true, Kinds: []string{"k"}, Slots: 1}}, d.now()))
	later := d.now().Wall + time.Hour.Milliseconds()
	d.merge(d.home.Add(Task{ID: v.task, Sent: vSelf, Queue: "q", Kind: "k", NotAfter: later}, d.now()))
	d.merge(d.home.Add(Task{ID: v.waits, Sent: vSelf, Queue: "q", Kind: "nobody", NotAfter: later}, d.now()))
	v.settle()
	for _, p := range v.posts {
		if g, ok := p.body.(*proto.Grant); ok {
			v.lease = g.GetClaim()
		}
	}
	if v.lease == nil {
		t.Fatal("nothing was granted")
	}
	v.lease.BootId = vOwnerBoot[:]
	v.mustSend(vOwner, &proto.Granted{Taken: []*proto.Taken{{Claim: v.claim()}}})
	v.mustSend(vFar, &proto.QueueStates{Queues: []*proto.QueueState{createdBy("far", peerOf(0), vFar)}})
	if home, _ := v.driver.home.HomeOf("far"); home != vFar {
		t.Fatal("the queue far is not known")
	}
	v.grant = &proto.Grant{
		Claim: &proto.Claim{Task: v.mine[:], EpochBoot: 50, EpochCounter: 5, Token: filled(7), Generation: 2}, Queue: "far", LeaseMs: 15_000, LeftMs: time.Hour.Milliseconds(),
		Envelope: &proto.Envelope{Header: v.mine[:]},
	}
	v.mustSend(vFar, v.grant)
	return v
}

func filled(b byte) []byte { return slices.Repeat([]byte{b}, 16) }

// claim returns a copy of the valid claim.
func (v *victim) claim() *proto.Claim {
	m := v.lease
	return &proto.Claim{Task: m.Task, EpochBoot: m.EpochBoot, EpochCounter: m.EpochCounter, Token: m.Token, Generation: m.Generation, BootId: m.BootId}
}

// given returns the victim's lease, as its home sends it.
func (v *victim) given() *proto.Claim {
	m := v.grant.Claim
	return &proto.Claim{Task: m.Task, EpochBoot: m.EpochBoot, EpochCounter: m.EpochCounter, Token: m.Token, Generation: m.Generation, BootId: vBoot[:]}
}

// answer returns the home's ruling about the victim's lease.
func (v *victim) answer(code proto.Code, change func(*proto.Ruling)) []*proto.Ruling {
	k := v.given()
	r := &proto.Ruling{Task: k.Task, EpochBoot: k.EpochBoot, EpochCounter: k.EpochCounter, Token: k.Token, BootId: k.BootId, Code: code, Generation: 2}
	if code == proto.CodeMoved {
		r.Home, r.Generation = vOther[:], 3
	}
	if change != nil {
		change(r)
	}
	return []*proto.Ruling{r}
}

// settle handles all waiting inputs and writes everything.
func (v *victim) settle() {
	v.t.Helper()
	for {
		v.driver.drain()
		if err := v.driver.flush(v.t.Context(), true); err != nil {
			v.t.Fatal(err)
		}
		if len(v.driver.selfSent) == 0 && len(v.driver.inputs) == 0 {
			return
		}
		v.driver.handleSelfSent()
	}
}

var messageTypes = map[string]proto.MessageType{
	"Grant": proto.TypeGrant, "Granted": proto.TypeGranted, "Start": proto.TypeStart, "Permit": proto.TypePermit,
	"Renew": proto.TypeRenew, "Renewed": proto.TypeRenewed, "Release": proto.TypeRelease, "ReleaseReply": proto.TypeReleased,
	"Status": proto.TypeStatus, "StatusReply": proto.TypeStatusReply, "Committed": proto.TypeCommitted, "Handoff": proto.TypeHandoff,
	"HandedOff": proto.TypeHandedOff, "QueueStates": proto.TypeQueues, "Cancel": proto.TypeWithdraw, "Envelope": proto.TypeEnded,
}

// wire returns a message as it arrives.
func (v *victim) wire(body proto.Body) *proto.Message {
	v.t.Helper()
	b, err := proto.Encode(nil, body)
	if err != nil {
		v.t.Fatal(err)
	}
	return &proto.Message{Type: messageTypes[string(body.ProtoReflect().Descriptor().Name())], Payload: b}
}

// send gives the victim a message from a member.
func (v *victim) send(from proto.PeerID, m *proto.Message) error {
	v.t.Helper()
	err := v.driver.Receive(from, m)
	v.settle()
	return err
}

func (v *victim) mustSend(from proto.PeerID, body proto.Body) {
	v.t.Helper()
	if err := v.send(from, v.wire(body)); err != nil {
		v.t.Fatal(err)
	}
}

// result returns a sealed result of an owner.
func (v *victim) result(k *proto.Claim, change func(*proto.Outcome)) proto.Body {
	o := &proto.Outcome{State: proto.Success, BodyDigest: slices.Repeat([]byte{1}, 32), BootId: k.BootId, LeaseToken: k.Token, EpochBoot: k.EpochBoot, EpochCounter: k.EpochCounter}
	if change != nil {
		change(o)
	}
	b, err := proto.Encode(nil, o)
	if err != nil {
		v.t.Fatal(err)
	}
	return &proto.Envelope{Header: k.Task, Body: b}
}

// handoff returns the handoff of a task from far's home.
func (v *victim) handoff(change func(*proto.Handoff)) *proto.Handoff {
	m := &proto.Handoff{
		Lease: &proto.Lease{Task: vGiven[:], Queue: "far", State: proto.Pending, Generation: 3, NotAfterMs: 1 << 50},
		Task:  &proto.Stored{Envelope: &proto.Envelope{Header: vGiven[:]}},
	}
	if change != nil {
		change(m)
	}
	return m
}

// state describes everything that the victim has in memory and on disk.
func (v *victim) state() (all []string) {
	for _, b := range []store.Bucket{store.Leases, store.Meta, store.PendingTasks, store.Inbox} {
		for p, err := range v.store.All(b, nil, nil) {
			if err != nil {
				v.t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("disk %v %x = %x", b, p.Key, p.Val))
		}
	}
	h, o := v.driver.home, v.driver.owner
	for id, ts := range h.tasks {
		all = append(all, fmt.Sprintf("task %x: %v until %v acked %v lapsed %v", id[:2], ts.record(), ts.mem.leaseUntil, ts.mem.acked, ts.mem.lapsed))
	}
	for id, entry := range h.transit.byID {
		all = append(all, fmt.Sprintf("moved %x: %v", id[:2], entry.record()))
	}
	for id, e := range h.ended.byID {
		all = append(all, fmt.Sprintf("ended %x: %v", id[:2], *e.Value.(*endedTask)))
	}
	for name, q := range h.titles.byName {
		if q.state != nil {
			all = append(all, fmt.Sprintf("queue %s: %v", name, q.state))
		}
	}
	for name, q := range h.queues {
		for key, l := range q.lanes {
			all = append(all, fmt.Sprintf("lane %s %v: %v", name, key, l.blocked))
		}
	}
	for id, r := range o.runs {
		all = append(all, fmt.Sprintf("run %x: %v home %d phase %v until %v alive %v stopped %v", id[:2], r.claim.message(), r.home[0], r.phase, r.mem.leaseUntil, r.mem.alive, r.mem.stopped))
	}
	all = append(all, fmt.Sprintf("epochs of %d, watermarks %v", h.epochs.boot, o.watermarks))
	slices.Sort(all)
	return all
}

// codes returns the codes of all answers to from.
func (v *victim) codes(from proto.PeerID) (all []proto.Code) {
	for _, p := range v.posts {
		if p.to != from {
			continue
		}
		var rulings []*proto.Ruling
		switch m := p.body.(type) {
		case *proto.Granted:
			for _, t := range m.GetTaken() {
				all = append(all, t.GetCode())
			}
		case *proto.Permit:
			rulings = m.GetRulings()
		case *proto.Renewed:
			rulings = m.GetRulings()
		case *proto.ReleaseReply:
			rulings = m.GetRulings()
		case *proto.Committed:
			rulings = m.GetRulings()
		}
		for _, r := range rulings {
			all = append(all, r.GetCode())
		}
	}
	return all
}

// refused sends a bad message, and checks that it is rejected as wanted, is counted, and
// changes nothing.
func (v *victim) refused(from proto.PeerID, m *proto.Message, want refusal) {
	t := v.t
	t.Helper()
	before := v.state()
	v.posts, v.events = nil, nil
	err := v.send(from, m)
	if want.err != nil && !errors.Is(err, want.err) || want.err == nil && err != nil {
		t.Errorf("the error is %v, want %v", err, want.err)
	}
	if codes := v.codes(from); want.code != 0 && !slices.Contains(codes, want.code) {
		t.Errorf("it is answered with %v, want %v", codes, want.code)
	} else if slices.Contains(codes, proto.CodeOK) {
		t.Errorf("it counts: %v", codes)
	}
	counted := err != nil // on receipt: see node.sortOne
	for _, e := range v.events {
		counted = counted || e.Kind == want.event
	}
	if !counted {
		t.Errorf("it is not counted as %v: %v", want.event, v.events)
	}
	after := v.state()
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("it changed %s", line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("it created %s", line)
		}
	}
}

// A refusal is how a bad message is rejected: with an error on receipt, or with a code in
// the answer, if there is one, and an event.
type refusal struct {
	err   error
	code  proto.Code
	event EventKind
}
