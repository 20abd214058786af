package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// No boot number that another node states, however often, makes the grants and answers of a
// home malformed after its next start.
func TestStatedBootNumbersAreBounded(t *testing.T) {
	t.Run("by a node that declines", func(t *testing.T) {
		f := newFixture(t, func(x *Task) { x.NotAfter += (24 * time.Hour).Milliseconds() })
		disk := map[string][]byte{}
		keep(disk, f.home.SetQueue(func(s *proto.QueueState) { s.Concurrency = 9 }, f.now, "q"))
		for range 100 {
			for _, seen := range []uint64{maxBoot - 1, f.now.plausibleBoot()} {
				f.now.Mono, f.now.Boot, f.now.Wall = f.now.Mono+time.Minute, f.now.Boot+time.Minute, f.now.Wall+60_000
				keep(disk, f.home.Tick(f.now)) // grants it again
				refused := &proto.Taken{Claim: claimOf(f.state()), Code: proto.CodeStale, SeenBoot: seen}
				keep(disk, f.home.OnGranted(ownerPeer, &proto.Granted{Taken: []*proto.Taken{refused}}, f.now))
			}
		}
		checkNextStart(t, disk, f.task, f.now)
	})
	t.Run("by a former home", func(t *testing.T) {
		now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
		h, disk := NewHome(homePeer, 100, Config{}), map[string][]byte{}
		keep(disk, h.Begin(now))
		_, out := h.Learn(createdBy("q", peerOf(0), otherPeer), now)
		keep(disk, out)
		given := h.Queue("q")
		given.Home, given.Generation = homePeer[:], 2
		given.Deeds = append(given.Deeds, signDeedAs("q", otherPeer, Deed{Generation: 2, From: otherPeer, To: homePeer}))
		_, out = h.Learn(given, now)
		keep(disk, out)
		last := Task{}
		for i, boot := range []uint64{100, now.plausibleBoot(), now.plausibleBoot() + 1, maxBoot} {
			x := Task{ID: proto.TaskID{7, byte(i)}, Sent: otherPeer, Queue: "q", Kind: "k", NotAfter: now.Wall + time.Hour.Milliseconds()}
			ts := &taskState{task: x, state: proto.Pending, gen: 2, epoch: proto.Seq{Boot: boot, Counter: 1}, owner: ownerPeer, released: true}
			keep(disk, h.OnHandoff(otherPeer, &proto.Handoff{Lease: ts.record()}, x, now))
			if here := h.tasks[x.ID] != nil; here != (i < 2) {
				t.Errorf("a task with an epoch of boot %d is taken: %v", boot, here)
			}
			if i < 2 {
				last = x
			}
		}
		checkNextStart(t, disk, last, now)
	})
}

// keep adds the writes of o to a disk.
func keep(disk map[string][]byte, o Output) {
	for _, w := range o.Writes {
		disk[w.Key] = w.Val
	}
}

// checkNextStart starts a home from its disk and checks what it sends about task x.
func checkNextStart(t *testing.T, disk map[string][]byte, x Task, now Now) {
	t.Helper()
	h := NewHome(homePeer, 101, Config{})
	var lease *proto.Lease
	for key, val := range disk {
		if val == nil {
			continue
		}
		m, err := h.Load(key, val)
		if err != nil {
			t.Fatal(err)
		}
		if m != nil && string(m.Task) == string(x.ID[:]) {
			lease = m
		}
	}
	h.Restore(x, lease, now)
	h.Begin(now)
	now.Mono, now.Boot = now.Mono+time.Minute, now.Boot+time.Minute
	h.Tick(now)
	var grant *proto.Grant
	for _, s := range h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, now).Sends {
		if g, ok := s.Body.(*proto.Grant); ok {
			grant = g
		}
	}
	if grant == nil {
		t.Fatal("nothing is granted after the restart")
	}
	if err := validate(grant); err != nil {
		t.Error(err)
	}
	grant.Claim.BootId = bootA[:]
	for _, s := range h.OnRenew(ownerPeer, &proto.Renew{Claims: []*proto.Claim{grant.Claim}}, now).Sends {
		if err := validate(s.Body); err != nil {
			t.Error(err)
		}
	}
}
