package ownership

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// withStandby is a queue's state as a home writes it that has a standby and a witness.
func withStandby(home proto.PeerID, generation uint64, changed int64) *proto.QueueState {
	appointed := &proto.Deed{Queue: "far", Generation: generation, From: home[:], To: home[:], Standby: vOwner[:], Witness: vStranger[:]}
	details, _ := proto.Encode(nil, appointed)
	return &proto.QueueState{
		Name: "far", Generation: generation, Home: home[:], ChangedMs: changed, Standby: vOwner[:], Witness: vStranger[:], Term: 4, Shipped: 99,
		Appointed: &proto.Signed{Details: details, Signer: home[:]}, Deeds: madeBy("far", peerOf(0), vFar).Deeds,
	}
}

// What a standby will need stands in the records of today and passes this code: a
// queue's state with it is taken, kept, told on and handed on as it is, and changes
// nothing of what is done.
func TestRecordsOfAStandbyAreKept(t *testing.T) {
	v := newVictim(t)
	want := withStandby(vFar, 1, v.room.now().Wall+1)
	v.good(vFar, &proto.QueueStates{Queues: []*proto.QueueState{want}})
	same := func(where string, s *proto.QueueState) {
		t.Helper()
		if s == nil || !bytes.Equal(s.Standby, want.Standby) || !bytes.Equal(s.Witness, want.Witness) || s.Term != want.Term || s.Shipped != want.Shipped ||
			s.Appointed == nil || !bytes.Equal(s.Appointed.Details, want.Appointed.Details) || !bytes.Equal(s.Appointed.Signer, want.Appointed.Signer) {
			t.Errorf("%s: %v", where, s)
		}
	}
	same("told on", v.room.QueueStates()["far"])
	val, err := v.store.Get(store.Leases, []byte(queueKey("far")))
	if err != nil {
		t.Fatal(err)
	}
	again := NewHome(vSelf, 101, Config{Deeds: v.room.cfg.Deeds})
	if _, err := again.Load(queueKey("far"), val); err != nil {
		t.Fatal(err)
	}
	same("after a start", again.Queue("far"))

	far := NewHome(vFar, 7, Config{Deeds: simDeeds{newSim(1, noMutation).nodes[1]}})
	if _, err := far.Load(queueKey("far"), val); err != nil {
		t.Fatal(err)
	}
	far.SetQueue(func(s *proto.QueueState) { s.Paused = true }, Now{Wall: want.ChangedMs}, "far")
	same("after a setting", far.Queue("far"))
	if _, err := far.HandOff("far", vSelf, Now{Wall: want.ChangedMs}); err != nil {
		t.Fatal(err)
	}
	same("after a handoff", far.Queue("far"))
	v.good(vFar, &proto.Handoff{Queue: far.Queue("far")})
	if home, generation := v.room.home.HomeOf("far"); home != vSelf || generation != 2 {
		t.Errorf("the home is %s since %d", home.Short(), generation)
	}
	same("at its new home", v.room.QueueStates()["far"])
}

// Votes make nobody the home for this code, whoever signed them: it knows deeds alone.
// A later version that counts them must be everywhere before a queue names a standby.
func TestVotesMakeNobodyTheHome(t *testing.T) {
	vote := func(by proto.PeerID, generation uint64) *proto.Signed {
		details, err := proto.Encode(nil, &proto.Deed{Queue: "far", Generation: generation, From: vFar[:], To: vOwner[:], Term: 5})
		if err != nil {
			t.Fatal(err)
		}
		return &proto.Signed{Details: details, Signer: slices.Clone(by[:])}
	}
	for name, change := range map[string]func(*proto.QueueState){
		"as votes": func(s *proto.QueueState) { s.Votes = []*proto.Signed{vote(vOwner, 2), vote(vStranger, 2)} },
		"as deeds": func(s *proto.QueueState) { s.Deeds = []*proto.Signed{vote(vOwner, 2), vote(vStranger, 2)} },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVictim(t)
			s := withStandby(vOwner, 2, v.room.now().Wall)
			change(s)
			v.refused(vOwner, v.wire(&proto.QueueStates{Queues: []*proto.QueueState{s}}), refusal{event: EventForged})
		})
	}
}

// A cell that says in which batch it was given to a standby is taken, and counts as
// any. This code gives nothing to a standby: what it writes anew says so.
func TestACellThatWasShippedCounts(t *testing.T) {
	b := newBench(t, nil)
	m := b.cell().record()
	m.Shipped = 7
	h := NewHome(homePeer, 200, Config{})
	h.Restore(b.task, m, b.now)
	b.now.Mono += time.Second
	_, out := h.OnResult(ownerPeer, Result{Claim: b.claim(), State: proto.Success, Digest: []byte("x")}, b.now)
	if len(out.Ends) != 1 {
		t.Fatal("the result does not count")
	}
	for _, w := range out.Writes {
		l := new(proto.Lease)
		if w.Key == taskKey(keyLease, b.task.ID) && (proto.Decode(w.Val, l) != nil || l.Shipped != 0) {
			t.Errorf("it is written as shipped in batch %d", l.Shipped)
		}
	}
}

// What a standby keeps of its home stands under keys of its own, which this code
// leaves alone.
func TestRecordsOfAStandbyLieAside(t *testing.T) {
	v := newVictim(t)
	key := append([]byte{keyShipped}, vFar[:]...)
	var b store.Batch
	b.Put(store.Leases, append(slices.Clone(key), taskKey(keyLease, vGiven)...), []byte("of its home"))
	mark, err := proto.Encode(nil, &proto.HomeMark{Home: vFar[:], Shipped: 99})
	if err != nil {
		t.Fatal(err)
	}
	b.Put(store.Leases, key, mark)
	if err := v.store.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	d, err := Open(v.store, v.room.parts, v.room.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.home.cells) != 0 || len(d.owner.runs) != 1 {
		t.Errorf("%d cells and %d leases, want those of the node alone", len(d.home.cells), len(d.owner.runs))
	}
	for _, k := range [][]byte{key, append(slices.Clone(key), taskKey(keyLease, vGiven)...)} {
		if _, err := v.store.Get(store.Leases, k); err != nil {
			t.Errorf("%x: %v", k, err)
		}
	}
}
