package ownership

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// record writes the records of outputs to a disk.
func record(disk map[string][]byte, outs ...Output) {
	for _, o := range outs {
		for _, w := range o.Writes {
			if w.Val == nil {
				delete(disk, w.Key)
			} else {
				disk[w.Key] = w.Val
			}
		}
	}
}

// An owner on an older copy of its disk does not know what it has started since. A task
// that may be started only once then needs an operator, and is granted to no other node.
func TestAnOwnerThatLostAStart(t *testing.T) {
	for _, tt := range []struct {
		name  string
		taken bool // the copy has the lease, but not its start
		mode  proto.Mode
		again bool
	}{
		{"at_most_once, from before the grant", false, proto.AtMostOnce, false},
		{"at_most_once, from before the start", true, proto.AtMostOnce, false},
		{"at_least_once, from before the grant", false, proto.AtLeastOnce, true},
		{"at_least_once, from before the start", true, proto.AtLeastOnce, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, func(x *Task) { x.Mode = tt.mode })
			disk, snapshot := map[string][]byte{}, map[string][]byte{}
			taken := f.owner.OnGrant(homePeer, f.grant, 0, f.now)
			f.exchange(f.home, taken)
			record(disk, taken)
			if tt.taken {
				snapshot = maps.Clone(disk)
			}
			f.exchange(f.home, f.owner.Ready(f.task.ID, false, f.now))
			if !f.owner.runs[f.task.ID].mem.alive {
				t.Fatal("it does not run")
			}

			f.owner = NewOwner(bootB, Config{})
			for key, val := range snapshot {
				if val, err := Restored(key, val); err != nil {
					t.Fatal(err)
				} else if err := f.owner.Load(key, val); err != nil {
					t.Fatal(err)
				}
			}
			f.advance(time.Second)
			granted := false
			see := func(out Output) {
				for _, s := range out.Sends {
					if _, ok := s.Body.(*proto.Grant); ok {
						granted = true
					}
				}
			}
			say := func(out Output) {
				for _, s := range out.Sends {
					if m, ok := s.Body.(*proto.Release); ok {
						see(f.home.OnRelease(ownerPeer, m, f.now))
					}
				}
			}
			say(f.owner.Begin(func(proto.TaskID) Policy { return PolicyRetry }, f.now))
			for range 30 { // until the lease is over, and its owner was asked
				f.advance(time.Second)
				out := f.home.Tick(f.now)
				see(out)
				for _, s := range out.Sends {
					if m, ok := s.Body.(*proto.Status); ok {
						say(f.owner.OnStatus(homePeer, m, f.now))
					}
				}
			}
			if granted != tt.again {
				t.Errorf("it was granted again: %v, want %v", granted, tt.again)
			}
			if e := f.home.ended.find(f.task.ID); !tt.again && (e == nil || e.state != proto.DeadLetter) {
				t.Error("no operator has to decide")
			}
		})
	}
}

// A home whose store was restored from an older copy does not know whether a task in the
// copy, or one that arrives again, was started since. One that may be started only once
// needs an operator, unless its queue turns out to have another home; any other is granted
// again, and so is one that an old home has handed over since.
func TestAHomeThatLostAStart(t *testing.T) {
	once, often := proto.AtMostOnce, proto.AtLeastOnce
	for _, tt := range []struct {
		name    string
		doubt   MayHaveRun
		mode    proto.Mode
		gen     uint64
		granted bool
	}{
		{"at_most_once, in the copy", PresentBeforeLoss, once, 1, false},
		{"at_most_once, made before the loss", CreatedBeforeLoss, once, 1, false},
		{"at_least_once", PresentBeforeLoss, often, 1, true},
		{"at_most_once, made since", CertainlyNotRun, once, 1, true},
		{"at_most_once, handed over before the loss", PresentBeforeLoss, once, 2, false},
		{"at_most_once, handed over since", CreatedBeforeLoss, once, 2, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
			task := Task{ID: proto.TaskID{7}, Queue: "q", Kind: "k", Mode: tt.mode, MayHaveRun: tt.doubt, NotAfter: now.Wall + time.Hour.Milliseconds()}
			h := NewHome(homePeer, 100, Config{})
			h.Restore(task, &proto.Lease{Task: task.ID[:], Generation: tt.gen, State: proto.Pending}, now)
			outs := []Output{h.Begin(now), h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, now)}
			for _, o := range outs {
				if len(o.Ends) > 0 {
					t.Error("it ended before a member could report where its queue is")
				}
			}
			now.Mono, now.Boot, now.Wall = now.Mono+time.Minute, now.Boot+time.Minute, now.Wall+time.Minute.Milliseconds()
			outs = append(outs, h.Tick(now))
			granted, dead := false, false
			for _, o := range outs {
				granted = granted || slices.ContainsFunc(o.Sends, func(s Send) bool { return s.Type == proto.TypeGrant })
				dead = dead || slices.ContainsFunc(o.Ends, func(e End) bool { return e.State == proto.DeadLetter })
			}
			if granted != tt.granted || dead == tt.granted {
				t.Errorf("it is granted: %v, a dead letter: %v", granted, dead)
			}
		})
	}
}

// A task that may have run moves on when its queue has another home.
func TestATaskThatMayHaveRunMovesOn(t *testing.T) {
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	task := Task{ID: proto.TaskID{7}, Queue: "q", Kind: "k", Mode: proto.AtMostOnce, MayHaveRun: PresentBeforeLoss, NotAfter: now.Wall + time.Hour.Milliseconds()}
	h := NewHome(homePeer, 100, Config{})
	h.SetQueue(func(*proto.QueueState) {}, now, "q")
	h.Restore(task, nil, now)
	h.Begin(now)
	if _, err := h.HandOff("q", otherPeer, now); err != nil {
		t.Fatal(err)
	}
	now.Mono, now.Boot = now.Mono+time.Minute, now.Boot+time.Minute
	if o := h.Tick(now); len(o.Ends) > 0 || h.transit.byID[task.ID] == nil {
		t.Errorf("it ended here: %+v", o.Ends)
	}
}

// A node of a newer version may release a lease for an unknown cause: that is treated as
// "unknown", and no node crashes.
func TestACauseOfANewerVersion(t *testing.T) {
	for mode, want := range map[proto.Mode]proto.TaskState{
		proto.AtLeastOnce: proto.Pending,
		proto.AtMostOnce:  proto.DeadLetter,
	} {
		f := newFixture(t, func(x *Task) { x.Mode = mode })
		f.exchange(f.home, f.owner.OnGrant(homePeer, f.grant, 0, f.now))
		f.exchange(f.home, f.owner.Ready(f.task.ID, false, f.now))
		if !f.owner.runs[f.task.ID].mem.alive {
			t.Fatal("it does not run")
		}
		ts := f.state()
		f.home.OnRelease(ownerPeer, &proto.Release{Released: []*proto.Released{{Claim: f.claim(), Cause: 99}}}, f.now)
		if ts.state != want {
			t.Errorf("a task of mode %v is %v", mode, ts.state)
		}
	}
}
