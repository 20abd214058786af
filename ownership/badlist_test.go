package ownership

import (
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
)

// A badClaim is a claim that must not count, whatever message contains it.
type badClaim struct {
	name   string
	about  topic
	from   proto.PeerID // zero: the owner of the lease
	change func(v *victim, k *proto.Claim)
	want   refusal // for messages that contain claims
	result refusal // for a result, whose lease is in the sealed part
}

// A topic is a subject that the list of bad messages must cover.
type topic string

const (
	ofEpoch   topic = "stale and future epochs"
	ofOwner   topic = "another owner"
	ofBoot    topic = "another boot id"
	ofToken   topic = "another token"
	ofGen     topic = "a wrong generation"
	ofEarly   topic = "a result before a grant"
	ofTwo     topic = "two results with different digests"
	ofLoop    topic = "a handoff that loops"
	ofMoved   topic = "a forged MOVED"
	ofForm    topic = "a malformed message"
	ofGrant   topic = "an invalid grant"
	ofAnswer  topic = "an answer to nothing"
	ofForgery topic = "a handoff or a queue from a node without it"
)

var (
	stale      = refusal{code: proto.CodeStale, event: EventConflict}
	unknown    = refusal{code: proto.CodeBusy, event: EventIgnored}
	none       = refusal{event: EventIgnored}
	notGranted = refusal{code: proto.CodeBusy, event: EventConflict}
	badForm    = refusal{code: proto.CodeBadForm, event: EventIgnored}
	malformed  = refusal{err: proto.ErrMalformed}
	tooLong    = refusal{err: proto.ErrTooLong}
	tooMany    = refusal{err: proto.ErrTooMany}
	noID       = refusal{err: proto.ErrBadID}
	forgedBy   = refusal{event: EventForged}
)

var badClaimList = []badClaim{
	{"an older epoch", ofEpoch, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.EpochCounter-- }, stale, stale},
	{"an epoch to come", ofEpoch, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.EpochCounter++ }, stale, stale},
	{"an older boot number", ofEpoch, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.EpochBoot-- }, stale, stale},
	{"a boot number to come", ofEpoch, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.EpochBoot++ }, stale, stale},
	{"a boot number that uses up all others", ofEpoch, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.EpochBoot = 1<<64 - 1 }, malformed, stale},
	{"no epoch", ofEpoch, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.EpochBoot, k.EpochCounter = 0, 0 }, stale, stale},
	{"another member", ofOwner, vOther, func(*victim, *proto.Claim) {}, stale, stale},
	{"a member that works on nothing", ofOwner, vStranger, func(*victim, *proto.Claim) {}, stale, stale},
	{"the boot id of a clone", ofBoot, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.BootId = vCloneBoot[:] }, stale, stale},
	{"the boot id of the home", ofBoot, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.BootId = vBoot[:] }, stale, stale},
	{"no boot id", ofBoot, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.BootId = nil }, stale, stale},
	{"a short boot id", ofBoot, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.BootId = k.BootId[:15] }, malformed, badForm},
	{"a guessed token", ofToken, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.Token = filled(9) }, stale, stale},
	{"the token of another lease", ofToken, proto.PeerID{}, func(v *victim, k *proto.Claim) { k.Token = v.grant.Claim.Token }, stale, stale},
	{"a short token", ofToken, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.Token = k.Token[:15] }, malformed, badForm},
	{"no token", ofToken, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.Token = nil }, malformed, badForm},
	{"a task that waits", ofEarly, proto.PeerID{}, func(v *victim, k *proto.Claim) { k.Task = v.waits[:] }, notGranted, notGranted},
	{"a task that was never here", ofEarly, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.Task = filled(0x77) }, unknown, unknown},
	{"a task whose home is elsewhere", ofEarly, proto.PeerID{}, func(v *victim, k *proto.Claim) { k.Task = v.mine[:] }, unknown, unknown},
	{"no task", ofForm, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.Task = nil }, malformed, noID},
	{"a short task id", ofForm, proto.PeerID{}, func(_ *victim, k *proto.Claim) { k.Task = k.Task[:15] }, malformed, noID},
}

// claimIn lists the messages that contain a claim. Those without an answer are only
// counted.
var claimIn = []struct {
	name     string
	answered bool
	body     func(k *proto.Claim) proto.Body
}{
	{"GRANTED", false, func(k *proto.Claim) proto.Body { return &proto.Granted{Taken: []*proto.Taken{{Claim: k}}} }},
	{"START", true, func(k *proto.Claim) proto.Body { return &proto.Start{Claims: []*proto.Claim{k}} }},
	{"RENEW", true, func(k *proto.Claim) proto.Body { return &proto.Renew{Number: 1, Claims: []*proto.Claim{k}} }},
	{"RELEASE", true, func(k *proto.Claim) proto.Body {
		return &proto.Release{Released: []*proto.Released{{Claim: k, Cause: proto.CauseFailed}}}
	}},
	{"STATUS_REPLY", false, func(k *proto.Claim) proto.Body { return &proto.StatusReply{Held: []*proto.Held{{Claim: k}}} }},
}

// A badMessage is a message that must not count. before prepares the victim.
type badMessage struct {
	name   string
	about  topic
	from   proto.PeerID
	before func(v *victim)
	make   func(v *victim) *proto.Message
	want   refusal
}

// withBody returns a bad message that can be encoded.
func withBody(name string, about topic, from proto.PeerID, want refusal, before func(*victim), body func(v *victim) proto.Body) badMessage {
	return badMessage{name, about, from, before, func(v *victim) *proto.Message { return v.wire(body(v)) }, want}
}

// raw returns a bad message that no encoder produces.
func raw(name string, want refusal, t proto.MessageType, payload func(v *victim) []byte) badMessage {
	return badMessage{name, ofForm, vOwner, nil, func(v *victim) *proto.Message { return &proto.Message{Type: t, Payload: payload(v)} }, want}
}

// field returns a field of bytes in wire format.
func field(number byte, b []byte) []byte {
	return slices.Concat([]byte{number<<3 | 2, byte(len(b)&0x7f | 0x80), byte(len(b) >> 7)}, b)
}

// encoded returns the encoding of a message.
func encoded(v *victim, body proto.Body) []byte { return v.wire(body).Payload }

// endTask ends the task with its owner's result.
func endTask(v *victim) { v.mustSend(vOwner, v.result(v.claim(), nil)) }

// releaseLease lets the owner release the lease; no other node takes the task.
func releaseLease(v *victim) {
	v.mustSend(vOwner, &proto.Release{Released: []*proto.Released{{Claim: v.claim(), Cause: proto.Unstarted}}})
}

// grantAgain grants the task to another node.
func grantAgain(v *victim) {
	d := v.driver
	n := d.home.members.byPeer[vOwner].known
	n.Alive = false
	d.merge(d.home.SetNode(n, d.now()))
	n.Peer, n.Alive = vOther, true
	d.merge(d.home.SetNode(n, d.now()))
	d.merge(d.home.Dead(vOwner, d.now()))
	v.settle()
	if ts := d.home.tasks[v.task]; ts.owner != vOther {
		v.t.Fatal("it was not granted again")
	}
}

// finishOwn finishes the task that was granted to the victim.
func finishOwn(v *victim) {
	d := v.driver
	d.merge(d.owner.Ready(v.mine, false, d.now()))
	_, out := d.owner.Finish(v.mine, proto.Success, filled(1), d.now())
	d.merge(out)
	v.settle()
}

// handOffQueue hands over the queue q and its tasks.
func handOffQueue(v *victim) {
	out, err := v.driver.home.HandOff("q", vFar, v.driver.now())
	if err != nil {
		v.t.Fatal(err)
	}
	v.driver.merge(out)
	v.settle()
}

// sentHandoff returns the handoff of a task that the victim has sent.
func sentHandoff(v *victim) *proto.Handoff {
	for _, p := range v.posts {
		if m, ok := p.body.(*proto.Handoff); ok && m.GetLease() != nil && string(m.Lease.Task) == string(v.task[:]) {
			return m
		}
	}
	v.t.Fatal("nothing was handed over")
	return nil
}

// acceptHandoff lets the victim accept a task of far.
func acceptHandoff(v *victim) {
	given := signDeedAs("far", vFar, Deed{Generation: 2, From: vFar, To: vSelf})
	v.mustSend(vFar, &proto.Handoff{Queue: &proto.QueueState{Name: "far", Home: vSelf[:], Generation: 2, Deeds: []*proto.Signed{given}}})
	v.mustSend(vFar, v.handoff(nil))
	if home, _ := v.driver.home.HomeOf("far"); home != vSelf || v.driver.home.tasks[vGiven] == nil {
		v.t.Fatal("the handoff was not taken")
	}
}

// The list is long enough, has no duplicates, and covers every topic.
func TestBadMessageListIsComplete(t *testing.T) {
	const wanted = 100
	seen, about := map[string]bool{}, map[topic]int{}
	note := func(name string, of topic) {
		if seen[string(of)+name] {
			t.Errorf("%q is in the list twice", name)
		}
		seen[string(of)+name] = true
		about[of]++
	}
	for _, b := range badClaimList {
		note(b.name, b.about)
	}
	for _, b := range badMessageList {
		note(b.name, b.about)
	}
	if len(seen) < wanted {
		t.Errorf("%d kinds of bad messages, want %d", len(seen), wanted)
	}
	for _, of := range []topic{ofEpoch, ofOwner, ofBoot, ofToken, ofGen, ofEarly, ofTwo, ofLoop, ofMoved, ofForm, ofGrant, ofAnswer, ofForgery} {
		if about[of] < 2 {
			t.Errorf("%d bad messages are about %s", about[of], of)
		}
	}
	t.Logf("%d kinds: %v", len(seen), about)
}

// Each bad message is rejected in its own way, is counted, and changes nothing in memory or
// on disk (I3, I4, I5).
func TestBadMessagesAreRefused(t *testing.T) {
	for _, b := range badClaimList {
		from := b.from
		if from == (proto.PeerID{}) {
			from = vOwner
		}
		for _, in := range claimIn {
			t.Run(string(b.about)+"/"+b.name+" in "+in.name, func(t *testing.T) {
				v, want := newVictim(t), b.want
				k := v.claim()
				b.change(v, k)
				if !in.answered {
					want.code = 0
				}
				v.refused(from, v.wire(in.body(k)), want)
			})
		}
		t.Run(string(b.about)+"/"+b.name+" in ENDED", func(t *testing.T) {
			v := newVictim(t)
			k := v.claim()
			b.change(v, k)
			v.refused(from, v.wire(v.result(k, nil)), b.result)
		})
	}
	for _, b := range badMessageList {
		t.Run(string(b.about)+"/"+b.name, func(t *testing.T) {
			v := newVictim(t)
			if b.before != nil {
				b.before(v)
			}
			m := b.make(v)
			v.refused(b.from, m, b.want)
		})
	}
}

// The valid forms of these messages do count: otherwise the list above would show nothing.
func TestGoodMessagesCount(t *testing.T) {
	for _, in := range claimIn {
		v := newVictim(t)
		if in.name == "START" {
			v.driver.home.tasks[v.task].task.Mode = proto.AtMostOnce
		}
		before := v.state()
		v.mustSend(vOwner, in.body(v.claim()))
		if slices.Equal(before, v.state()) {
			t.Errorf("%s changes nothing", in.name)
		}
	}
	v := newVictim(t)
	endTask(v)
	if v.driver.home.ended.find(v.task) == nil {
		t.Error("the result did not count")
	}
	v = newVictim(t)
	v.mustSend(vFar, &proto.Permit{Rulings: v.answer(proto.CodeMoved, nil)})
	if v.driver.owner.runs[v.mine].home != vOther {
		t.Error("the home did not move")
	}
	acceptHandoff(newVictim(t))
}
