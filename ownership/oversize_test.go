package ownership

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/wire"
)

// storeMax is the largest value of the store.
const storeMax = 64 << 10

// A message that would not fit into the store, or is larger than any node sends, is
// rejected on receipt as the sender's fault.
func TestLargeMessagesAreRefused(t *testing.T) {
	deeds := func(n, size int) (all []*proto.Signed) {
		for range n {
			all = append(all, &proto.Signed{Details: make([]byte, size)})
		}
		return all
	}
	state := func(d []*proto.Signed) *proto.QueueState {
		return &proto.QueueState{Name: "q", Generation: 1, Home: otherPeer[:], Deeds: d}
	}
	id := make([]byte, 16)
	lease := &proto.Lease{Task: id, Generation: 2, Moves: []*proto.Receipt{{Statement: make([]byte, 250), Path: make([]byte, 320)}}}
	for len(lease.Moves) < 16 {
		lease.Moves = append(lease.Moves, lease.Moves[0])
	}
	for name, m := range map[string]proto.Body{
		"a state":                    &proto.QueueStates{Queues: []*proto.QueueState{state(deeds(32, 2000))}},
		"a deed":                     &proto.QueueStates{Queues: []*proto.QueueState{state(deeds(1, proto.MaxDeed+1))}},
		"a state in a handoff":       &proto.Handoff{Queue: state(deeds(32, 2000))},
		"the certificate of a deed":  &proto.Handoff{Queue: state([]*proto.Signed{{Issuer: deeds(1, proto.MaxDeed+1)[0]}})},
		"a lease":                    &proto.Handoff{Lease: lease},
		"the task of a lane's block": &proto.Handoff{Queue: state(nil), Blocks: []*proto.LaneBlock{{Queue: "q", Key: "k", Task: make([]byte, 15)}}},
	} {
		if err := validate(m); !errors.Is(err, proto.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := validate(&proto.QueueStates{Queues: []*proto.QueueState{state(deeds(32, 900))}}); err != nil {
		t.Errorf("a state of %d bytes: %v", proto.Size(state(deeds(32, 900))), err)
	}
}

// Deeds that arrive one after another never exceed the room of a state together.
func TestDeedsFitTogether(t *testing.T) {
	h := NewHome(homePeer, 1, Config{})
	s := &proto.QueueState{Name: "q", Generation: 1, Home: otherPeer[:]}
	for round := range 4 {
		s.Deeds = nil
		for i := range 20 {
			d := Deed{Queue: "q", Generation: uint64(20*round + i + 2), To: otherPeer, Root: Root{1}} // of an admin
			x, err := plainDeeds{}.Sign(d)
			if err != nil {
				t.Fatal(err)
			}
			x.Issuer = &proto.Signed{Details: make([]byte, 1000), Signature: make([]byte, 64)}
			x.Details = append(x.Details, 0xc2, 0x3e, 0x80, 0x07) // 896 bytes of an unknown field
			x.Details = append(x.Details, make([]byte, 896)...)
			s.Deeds, s.Generation, s.ChangedMs = append(s.Deeds, x), d.Generation, s.ChangedMs+1
		}
		news, out := h.Learn(s, Now{})
		if !news {
			t.Fatalf("round %d is not accepted: %v", round, out.Events)
		}
		for _, w := range out.Writes {
			if len(w.Val) > proto.MaxQueueState {
				t.Errorf("round %d writes %d bytes", round, len(w.Val))
			}
		}
	}
}

// The longest names make a key that the store accepts, and the fullest lease of a task is
// one that a new home accepts.
func TestTheLargestRecordsFit(t *testing.T) {
	f := newFixture(t, func(x *Task) {
		x.Queue, x.Key, x.Block = strings.Repeat("q", 128), strings.Repeat("k", proto.MaxKey), true
	})
	ts := f.state()
	for range proto.MaxAttempts {
		ts.grants = append(ts.grants, &proto.Granting{EpochBoot: math.MaxUint64, EpochCounter: math.MaxUint64, Owner: ownerPeer[:], TimeMs: math.MaxInt64, Ended: strings.Repeat("e", 128)})
	}
	ts.grants = ts.grants[len(ts.grants)-proto.MaxAttempts:]
	ts.reason = strings.Repeat("r", proto.MaxReason)
	if n := proto.Size(ts.record()); n > proto.MaxLease {
		t.Errorf("a lease of %d bytes, others take %d", n, proto.MaxLease)
	}
	s, err := store.Open(mem.New(), store.Config{SweepEvery: -1, CompactEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Fits(storeMax); err != nil {
		t.Error(err)
	}
	var batch store.Batch
	batch.Put(store.Leases, []byte(blockKey(ts.task.Queue, laneKey{ownerPeer, ts.task.Key})), nil)
	batch.Put(store.Leases, []byte(queueKey(ts.task.Queue)), make([]byte, proto.MaxQueueState))
	if err := s.Apply(t.Context(), &batch); err != nil {
		t.Errorf("the store refuses a record: %v", err)
	}
}

// A message that asks for a record that the store rejects is dropped and its sender
// reported: nothing of it is answered or kept, and the driver and running tasks continue
// (I8).
func TestMessagesTheStoreRejectsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, 20*time.Second)
		defer w.close()
		home := w.nodes[0]
		home.end()
		home.values = 8 << 10
		home.start()
		w.members()
		for i := range 8 {
			home.add(i, nil)
		}
		time.Sleep(5 * time.Second) // some are running
		state := queueStateWith("fat", testPeer(2), 9000)
		small := queueStateWith("small", testPeer(2), 500)
		w.nodes[2].Post(testPeer(0), proto.TypeQueues, &proto.QueueStates{Queues: []*proto.QueueState{small, state}})
		given, self := queueStateWith("given", testPeer(2), 9000), testPeer(0)
		given.Deeds = append(given.Deeds, signDeedAs("given", testPeer(2), Deed{Generation: 2, From: testPeer(2), To: self, Root: rootBy("given", peerOf(0))}))
		given.Generation, given.Home = 2, self[:]
		w.nodes[2].Post(testPeer(0), proto.TypeHandoff, &proto.Handoff{Queue: given})
		time.Sleep(time.Second)
		known := home.driver.QueueStates()
		if known["fat"] != nil || known["given"] != nil || known["small"] == nil {
			t.Errorf("it knows %v", slices.Collect(maps.Keys(known)))
		}
		time.Sleep(time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		sender := testPeer(2)
		if len(home.offenses) < 2 || slices.ContainsFunc(home.offenses, func(p proto.PeerID) bool { return p != sender }) {
			t.Errorf("violations are held against %v, want at least two against %s", home.offenses, sender)
		}
		if len(home.forged) != len(home.offenses) {
			t.Errorf("%d events for %d violations: %v", len(home.forged), len(home.offenses), home.forged)
		}
		for _, e := range home.forged {
			if e.Peer != sender || e.Cause != wire.LeaseUnstorable || !strings.Contains(e.Detail, "too large") {
				t.Errorf("an event is %+v", e)
			}
		}
		for i := range 8 {
			if w.starts[testTaskID(i)] != 1 || len(w.ends[testTaskID(i)]) != 1 {
				t.Errorf("task %d was started %d times and ended %v", i, w.starts[testTaskID(i)], w.ends[testTaskID(i)])
			}
		}
	})
}
