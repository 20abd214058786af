package ownership

import (
	"slices"

	"github.com/balefire/balefire/proto"
)

// badMessageList lists the messages that are bad in other ways than by their claim.
var badMessageList = slices.Concat(badResults, badGrants, badAnswers, badMoves, badHandoffs, badForms)

var badResults = []badMessage{
	withBody("that names no end", ofEarly, vOwner, badForm, nil, func(v *victim) proto.Body {
		return v.result(v.claim(), func(o *proto.Outcome) { o.State = proto.Running })
	}),
	withBody("of no state", ofEarly, vOwner, badForm, nil, func(v *victim) proto.Body {
		return v.result(v.claim(), func(o *proto.Outcome) { o.State = 0 })
	}),
	withBody("of a state that is not known", ofEarly, vOwner, badForm, nil, func(v *victim) proto.Body {
		return v.result(v.claim(), func(o *proto.Outcome) { o.State = 99 })
	}),
	withBody("after the first", ofTwo, vOwner, refusal{code: proto.CodeStale, event: EventIgnored}, endTask, func(v *victim) proto.Body {
		return v.result(v.claim(), func(o *proto.Outcome) { o.BodyDigest = slices.Repeat([]byte{2}, 32) })
	}),
	withBody("without a digest", ofTwo, vOwner, refusal{code: proto.CodeStale, event: EventIgnored}, endTask, func(v *victim) proto.Body {
		return v.result(v.claim(), func(o *proto.Outcome) { o.BodyDigest = nil })
	}),
	withBody("the same digest as another end", ofTwo, vOwner, refusal{code: proto.CodeStale, event: EventIgnored}, endTask, func(v *victim) proto.Body {
		return v.result(v.claim(), func(o *proto.Outcome) { o.State = proto.Failed })
	}),
	withBody("the same by another member", ofTwo, vOther, refusal{code: proto.CodeStale, event: EventIgnored}, endTask, func(v *victim) proto.Body {
		return v.result(v.claim(), nil)
	}),
	withBody("the same under another epoch", ofTwo, vOwner, refusal{code: proto.CodeStale, event: EventIgnored}, endTask, func(v *victim) proto.Body {
		k := v.claim()
		k.EpochCounter++
		return v.result(k, nil)
	}),
	withBody("of a lease that was given back", ofEpoch, vOwner, stale, releaseLease, func(v *victim) proto.Body { return v.result(v.claim(), nil) }),
	withBody("of a lease that another has by now", ofEpoch, vOwner, stale, grantAgain, func(v *victim) proto.Body { return v.result(v.claim(), nil) }),
	withBody("a renewal of a lease that was given back", ofEpoch, vOwner, stale, releaseLease, func(v *victim) proto.Body {
		return &proto.Renew{Number: 1, Claims: []*proto.Claim{v.claim()}}
	}),
	withBody("a renewal of a lease that another has by now", ofEpoch, vOwner, stale, grantAgain, func(v *victim) proto.Body {
		return &proto.Renew{Number: 1, Claims: []*proto.Claim{v.claim()}}
	}),
	withBody("a release of what has ended", ofEpoch, vOwner, refusal{code: proto.CodeStale, event: EventIgnored}, endTask, func(v *victim) proto.Body {
		return &proto.Release{Released: []*proto.Released{{Claim: v.claim(), Cause: proto.CauseCrashed}}}
	}),
	withBody("a start that needs no permit", ofEarly, vOwner, badForm, nil, func(v *victim) proto.Body { return &proto.Start{Claims: []*proto.Claim{v.claim()}} }),
	withBody("declined by another member", ofOwner, vOther, none, nil, func(v *victim) proto.Body {
		return &proto.Granted{Taken: []*proto.Taken{{Claim: v.claim(), Code: proto.CodeBusy}}}
	}),
	withBody("declined after it was taken", ofEpoch, vOwner, none, nil, func(v *victim) proto.Body {
		return &proto.Granted{Taken: []*proto.Taken{{Claim: v.claim(), Code: proto.CodeBusy}}}
	}),
	withBody("declined for an epoch that uses up the numbers", ofEpoch, vOwner, malformed, nil, func(v *victim) proto.Body {
		return &proto.Granted{Taken: []*proto.Taken{{Claim: v.claim(), Code: proto.CodeStale, SeenBoot: 1<<64 - 1}}}
	}),
}

// grantOf returns the victim's grant with a change.
func grantOf(v *victim, change func(*proto.Grant)) proto.Body {
	g := &proto.Grant{Claim: v.given(), Queue: "far", LeaseMs: 15_000, LeftMs: v.grant.LeftMs, Envelope: v.grant.Envelope}
	g.Claim.BootId = nil
	change(g)
	return g
}

var (
	staleGrant = refusal{code: proto.CodeStale, event: EventRefused}
	otherGrant = refusal{code: proto.CodeStale, event: EventForged}
)

var badGrants = []badMessage{
	withBody("of an older epoch", ofGrant, vFar, staleGrant, nil, func(v *victim) proto.Body {
		return grantOf(v, func(g *proto.Grant) { g.Claim.EpochCounter-- })
	}),
	withBody("of an older generation", ofGen, vFar, staleGrant, nil, func(v *victim) proto.Body {
		return grantOf(v, func(g *proto.Grant) { g.Claim.EpochCounter++; g.Claim.Generation = 1 })
	}),
	withBody("with another token", ofGrant, vFar, otherGrant, nil, func(v *victim) proto.Body {
		return grantOf(v, func(g *proto.Grant) { g.Claim.Token = filled(8) })
	}),
	withBody("of another home with the same generation", ofGrant, vOther, otherGrant, nil, func(v *victim) proto.Body {
		return grantOf(v, func(*proto.Grant) {})
	}),
	withBody("for an earlier start", ofGrant, vFar, refusal{code: proto.CodeBusy, event: EventIgnored}, nil, func(v *victim) proto.Body {
		return grantOf(v, func(g *proto.Grant) { g.Claim.Task, g.Claim.BootId = filled(0x55), vCloneBoot[:] })
	}),
	withBody("that its home has settled", ofGrant, vFar, staleGrant, func(v *victim) {
		v.driver.owner.raiseWatermark(vFar, proto.Seq{Boot: 60})
	}, func(v *victim) proto.Body {
		return grantOf(v, func(g *proto.Grant) { g.Claim.Task = filled(0x55) })
	}),
	withBody("of a node that may not grant it", ofGrant, vStranger, refusal{code: proto.CodeDenied, event: EventIgnored}, func(v *victim) { v.code = proto.CodeDenied }, func(v *victim) proto.Body {
		return grantOf(v, func(g *proto.Grant) { g.Claim.Task = filled(0x55) })
	}),
	withBody("a late copy of one that is over", ofGrant, vFar, refusal{event: EventRefused}, func(v *victim) {
		finishOwn(v)
		v.mustSend(vFar, &proto.Committed{Rulings: v.answer(0, nil)})
	}, func(v *victim) proto.Body { return grantOf(v, func(*proto.Grant) {}) }),
	withBody("without a claim", ofGrant, vFar, malformed, nil, func(v *victim) proto.Body {
		return grantOf(v, func(g *proto.Grant) { g.Claim = nil })
	}),
	withBody("that uses up the numbers", ofGrant, vFar, malformed, nil, func(v *victim) proto.Body {
		return grantOf(v, func(g *proto.Grant) { g.Claim.Task, g.Claim.EpochBoot = filled(0x55), 1<<64-1 })
	}),
	withBody("that settles all that will ever be", ofGrant, vFar, malformed, nil, func(v *victim) proto.Body {
		return grantOf(v, func(g *proto.Grant) { g.SettledBoot = 1<<64 - 1 })
	}),
}

var badAnswers = []badMessage{
	withBody("a permit that was not requested", ofAnswer, vFar, none, nil, func(v *victim) proto.Body {
		return &proto.Permit{Rulings: v.answer(0, nil)}
	}),
	withBody("a permit by a node that is not the home", ofAnswer, vOther, none, nil, func(v *victim) proto.Body {
		return &proto.Permit{Rulings: v.answer(0, nil)}
	}),
	withBody("a result that was not brought is committed", ofAnswer, vFar, none, nil, func(v *victim) proto.Body {
		return &proto.Committed{Rulings: v.answer(0, nil)}
	}),
	withBody("committed by who is not the home", ofAnswer, vStranger, none, finishOwn, func(v *victim) proto.Body {
		return &proto.Committed{Rulings: v.answer(0, nil)}
	}),
	withBody("committed under another epoch", ofAnswer, vFar, none, finishOwn, func(v *victim) proto.Body {
		return &proto.Committed{Rulings: v.answer(0, func(r *proto.Ruling) { r.EpochCounter++ })}
	}),
	withBody("committed for a clone", ofAnswer, vFar, none, finishOwn, func(v *victim) proto.Body {
		return &proto.Committed{Rulings: v.answer(0, func(r *proto.Ruling) { r.BootId = vCloneBoot[:] })}
	}),
	withBody("declared lost by a node that is not the home", ofAnswer, vOther, none, nil, func(v *victim) proto.Body {
		return &proto.Renewed{Number: 1, Rulings: v.answer(proto.CodeStale, nil)}
	}),
	withBody("declared lost with another token", ofAnswer, vFar, none, nil, func(v *victim) proto.Body {
		return &proto.Permit{Rulings: v.answer(proto.CodeStale, func(r *proto.Ruling) { r.Token = filled(9) })}
	}),
	withBody("what was not given back is taken back", ofAnswer, vFar, none, nil, func(v *victim) proto.Body {
		return &proto.ReleaseReply{Rulings: v.answer(0, nil)}
	}),
	withBody("a renewal that was never sent", ofAnswer, vFar, none, nil, func(v *victim) proto.Body {
		return &proto.Renewed{Number: 77, LeaseMs: 1 << 30}
	}),
	withBody("a question of who is not the home", ofAnswer, vOther, none, nil, func(v *victim) proto.Body {
		return &proto.Status{Claims: []*proto.Claim{v.given()}}
	}),
	withBody("a question about another token", ofAnswer, vFar, none, nil, func(v *victim) proto.Body {
		k := v.given()
		k.Token = filled(9)
		return &proto.Status{Claims: []*proto.Claim{k}}
	}),
	withBody("a question about an older epoch", ofAnswer, vFar, none, nil, func(v *victim) proto.Body {
		k := v.given()
		k.EpochCounter--
		return &proto.Status{Claims: []*proto.Claim{k}}
	}),
	withBody("a cancel from a node that is not the home", ofAnswer, vStranger, none, nil, func(v *victim) proto.Body {
		return &proto.Cancel{Task: v.mine[:]}
	}),
	withBody("a cancel from a node that was never the home", ofForgery, vStranger, none, nil, func(v *victim) proto.Body {
		return &proto.Cancel{Task: v.task[:]}
	}),
}

// movedTo answers a requested permit with MOVED.
func movedTo(change func(*proto.Ruling)) func(v *victim) proto.Body {
	return func(v *victim) proto.Body { return &proto.Permit{Rulings: v.answer(proto.CodeMoved, change)} }
}

var badMoves = []badMessage{
	withBody("by the new home itself", ofMoved, vOther, none, nil, movedTo(nil)),
	withBody("by a stranger", ofMoved, vStranger, none, nil, movedTo(func(r *proto.Ruling) { r.Home = vStranger[:] })),
	withBody("to an older generation", ofMoved, vFar, none, nil, movedTo(func(r *proto.Ruling) { r.Generation = 1 })),
	withBody("to the same generation", ofGen, vFar, none, nil, movedTo(func(r *proto.Ruling) { r.Generation = 2 })),
	withBody("without a generation", ofMoved, vFar, none, nil, movedTo(func(r *proto.Ruling) { r.Generation = 0 })),
	withBody("about another epoch", ofMoved, vFar, none, nil, movedTo(func(r *proto.Ruling) { r.EpochCounter++ })),
	withBody("about another token", ofMoved, vFar, none, nil, movedTo(func(r *proto.Ruling) { r.Token = filled(9) })),
	withBody("sent to a clone", ofMoved, vFar, none, nil, movedTo(func(r *proto.Ruling) { r.BootId = vCloneBoot[:] })),
	withBody("to half a node", ofMoved, vFar, malformed, nil, movedTo(func(r *proto.Ruling) { r.Home = vOther[:16] })),
	withBody("to nowhere", ofMoved, vFar, malformed, nil, movedTo(func(r *proto.Ruling) { r.Home = nil })),
}

// queueMessage announces a queue, as a member sends it.
func queueMessage(home proto.PeerID, generation uint64, deeds ...*proto.Signed) func(v *victim) proto.Body {
	return func(*victim) proto.Body {
		return &proto.QueueStates{Queues: []*proto.QueueState{{Name: "q", Home: home[:], Generation: generation, Deeds: deeds}}}
	}
}

// signDeedAs signs a deed as liar, whether that may or not.
func signDeedAs(queue string, liar proto.PeerID, d Deed) *proto.Signed {
	d.Queue = queue
	if d.Root == (Root{}) {
		d.Root = rootBy(queue, peerOf(0))
	}
	s, err := plainDeeds{}.Sign(d)
	if err != nil {
		panic(err)
	}
	s.Signer = slices.Clone(liar[:])
	return s
}

var badHandoffs = []badMessage{
	withBody("back to where it came from, as it was", ofLoop, vFar, none, handOffQueue, func(v *victim) proto.Body { return sentHandoff(v) }),
	withBody("back with an older generation", ofLoop, vFar, none, func(v *victim) {
		v.driver.home.tasks[v.task].gen = 5
		handOffQueue(v)
	}, func(v *victim) proto.Body {
		m := sentHandoff(v)
		m.Lease.Generation = 3
		return m
	}),
	withBody("a copy of what was taken", ofLoop, vFar, none, acceptHandoff, func(v *victim) proto.Body { return v.handoff(nil) }),
	withBody("a task that has ended here", ofLoop, vFar, none, func(v *victim) {
		acceptHandoff(v)
		_, out := v.driver.home.Cancel(vGiven, false, v.driver.now())
		v.driver.merge(out)
		v.settle()
	}, func(v *victim) proto.Body { return v.handoff(func(m *proto.Handoff) { m.Lease.Generation = 4 }) }),
	withBody("of the first generation", ofGen, vFar, malformed, nil, func(v *victim) proto.Body { return v.handoff(func(m *proto.Handoff) { m.Lease.Generation = 1 }) }),
	withBody("of no generation", ofGen, vFar, malformed, nil, func(v *victim) proto.Body { return v.handoff(func(m *proto.Handoff) { m.Lease.Generation = 0 }) }),
	withBody("of who was never its home", ofForgery, vStranger, forgedBy, nil, func(v *victim) proto.Body { return v.handoff(nil) }),
	withBody("the state of another task", ofForgery, vFar, none, nil, func(v *victim) proto.Body {
		return v.handoff(func(m *proto.Handoff) { m.Lease.Task = filled(0x44) })
	}),
	withBody("a task without its envelope", ofForgery, vFar, noID, nil, func(v *victim) proto.Body {
		return v.handoff(func(m *proto.Handoff) { m.Task = nil })
	}),
	withBody("a task that has ended", ofForgery, vFar, malformed, nil, func(v *victim) proto.Body {
		return v.handoff(func(m *proto.Handoff) { m.Lease.State = proto.Success })
	}),
	withBody("epochs that use up the numbers", ofForgery, vFar, malformed, nil, func(v *victim) proto.Body {
		return v.handoff(func(m *proto.Handoff) { m.Lease.EpochBoot = 1<<64 - 1 })
	}),
	withBody("before the one that it follows", ofForgery, vFar, none, nil, func(v *victim) proto.Body {
		return v.handoff(func(m *proto.Handoff) { m.Behind, m.BehindGeneration = filled(0x33), 2 })
	}),
	withBody("nothing", ofForgery, vFar, malformed, nil, func(*victim) proto.Body { return new(proto.Handoff) }),
	withBody("a lane of a queue that it never had", ofForgery, vStranger, forgedBy, nil, func(v *victim) proto.Body {
		return v.handoff(func(m *proto.Handoff) { m.Blocks = []*proto.LaneBlock{{Queue: "q", Key: "x", Task: filled(1)}} })
	}),
	withBody("a queue to a third", ofForgery, vStranger, none, nil, func(*victim) proto.Body {
		return &proto.Handoff{Queue: &proto.QueueState{Name: "q", Home: vOther[:], Generation: 9}}
	}),
	withBody("answered by a stranger", ofForgery, vStranger, none, handOffQueue, func(v *victim) proto.Body {
		return &proto.HandedOff{Moved: []*proto.Moved{{Task: v.task[:], Generation: 2}}}
	}),
	withBody("answered for an older generation", ofGen, vFar, none, handOffQueue, func(v *victim) proto.Body {
		return &proto.HandedOff{Moved: []*proto.Moved{{Task: v.task[:], Generation: 1}}}
	}),
	withBody("answered for what is here", ofForgery, vFar, none, nil, func(v *victim) proto.Body {
		return &proto.HandedOff{Moved: []*proto.Moved{{Task: v.task[:], Generation: 9}, {Queue: "q", Generation: 9}}}
	}),
	withBody("a queue without a deed", ofForgery, vStranger, forgedBy, nil, queueMessage(vStranger, 2)),
	withBody("a queue with the highest generation", ofGen, vStranger, forgedBy, nil, queueMessage(vStranger, proto.MaxGeneration)),
	withBody("a queue with a generation that none has", ofGen, vStranger, malformed, nil, queueMessage(vStranger, 1<<64-1)),
	withBody("a queue by its own deed", ofForgery, vStranger, forgedBy, nil, queueMessage(vStranger, 2, signDeedAs("q", vStranger, Deed{Generation: 2, From: vStranger, To: vStranger}))),
	withBody("a queue by a deed in the home's name", ofForgery, vStranger, forgedBy, nil, queueMessage(vStranger, 2, signDeedAs("q", vStranger, Deed{Generation: 2, From: vSelf, To: vStranger}))),
	withBody("a queue seized by a node that is not an admin", ofForgery, vStranger, forgedBy, nil, queueMessage(vStranger, 2, signDeedAs("q", vStranger, Deed{Generation: 2, From: vSelf, To: vStranger, Seized: true}))),
	withBody("a queue for another", ofForgery, vStranger, forgedBy, nil, queueMessage(vOther, 2)),
	withBody("a queue of half a node", ofForgery, vStranger, malformed, nil, func(*victim) proto.Body {
		return &proto.QueueStates{Queues: []*proto.QueueState{{Name: "q", Home: vStranger[:16], Generation: 2}}}
	}),
	withBody("a queue without a name", ofForgery, vStranger, malformed, nil, func(*victim) proto.Body {
		return &proto.QueueStates{Queues: []*proto.QueueState{{Home: vStranger[:], Generation: 2}}}
	}),
}

var badForms = []badMessage{
	raw("a renewal that is cut short", malformed, proto.TypeRenew, func(v *victim) []byte {
		b := encoded(v, &proto.Renew{Number: 1, Claims: []*proto.Claim{v.claim()}})
		return b[:len(b)-1]
	}),
	raw("more claims than one message may have", tooMany, proto.TypeRenew, func(v *victim) []byte {
		return slices.Repeat(encoded(v, &proto.Renew{Claims: []*proto.Claim{v.claim()}}), proto.MaxGroup+1)
	}),
	raw("two claims of one grant", malformed, proto.TypeGrant, func(v *victim) []byte {
		return slices.Repeat(encoded(v, &proto.Grant{Claim: v.given()}), 2)
	}),
	raw("a claim that is a number", malformed, proto.TypeStart, func(*victim) []byte { return []byte{1 << 3, 1} }),
	raw("a claim that is a group", malformed, proto.TypeStart, func(*victim) []byte { return []byte{1<<3 | 3, 1<<3 | 4} }),
	raw("a queue name that is not valid text", malformed, proto.TypeGrant, func(v *victim) []byte {
		return append(encoded(v, &proto.Grant{Claim: v.given()}), field(2, []byte{0xff, 0xfe})...)
	}),
	raw("a long token", tooLong, proto.TypeRenew, func(*victim) []byte { return field(2, field(4, make([]byte, 17))) }),
	raw("a long boot id", tooLong, proto.TypeRenew, func(*victim) []byte { return field(2, field(5, make([]byte, 17))) }),
	raw("a long task id", tooLong, proto.TypeStatus, func(*victim) []byte { return field(1, field(1, make([]byte, 32))) }),
	raw("a result that is not sealed", malformed, proto.TypeEnded, func(*victim) []byte { return []byte("a result") }),
	raw("a message for another subsystem", malformed, proto.TypeData, func(*victim) []byte { return nil }),
	raw("an empty grant", malformed, proto.TypeGrant, func(*victim) []byte { return nil }),
	raw("a predecessor of a wrong size", malformed, proto.TypeHandoff, func(v *victim) []byte {
		return append(encoded(v, v.handoff(nil)), field(2, []byte{1})...)
	}),
}
