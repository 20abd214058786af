package ownership

import (
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A grant that takes longer than a lease to reach its owner keeps the task there: for a while
// if another member could take it, otherwise for as long as that lasts. Its owner is not asked
// meanwhile: it would answer that it does not have the lease.
func TestGrantOnASlowLink(t *testing.T) {
	for name, other := range map[string]bool{"one member": false, "another member has a free slot": true, "another member, and one task at a time": true} {
		t.Run(name, func(t *testing.T) {
			now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
			h := NewHome(homePeer, 100, Config{})
			h.Begin(now)
			h.SetActive(true, now)
			h.SetQueue(func(q *proto.QueueState) {
				if strings.Contains(name, "one task") {
					q.Concurrency = 1
				}
			}, now, "q")
			h.SetNode(Node{Member: dispatch.Member{Peer: ownerPeer, Alive: true, Kinds: []string{"k"}, Slots: 1}}, now)
			out := h.Add(Task{ID: proto.TaskID{1}, Queue: "q", Kind: "k", NotAfter: now.Wall + time.Hour.Milliseconds()}, now)
			if other {
				h.SetNode(Node{Member: dispatch.Member{Peer: otherPeer, Alive: true, Kinds: []string{"k"}, Slots: 1}}, now)
			}
			var first *proto.Grant
			began := now.Mono
			for range 120 {
				for _, s := range out.Sends {
					switch m := s.Body.(type) {
					case *proto.Status:
						if now.Mono-began < maxGrantDelay*15*time.Second {
							t.Fatalf("the owner is asked after %v", now.Mono-began)
						}
					case *proto.Grant:
						if first == nil {
							first = m
						}
						if s.To != ownerPeer || m.Claim.EpochCounter != first.Claim.EpochCounter {
							if after := now.Mono - began; !other || after < maxGrantDelay*15*time.Second || after > maxGrantDelay*15*time.Second+30*time.Second {
								t.Fatalf("granted again after %v", after)
							}
							return
						}
						h.DelayGrant(m, now)
					}
				}
				now.Mono, now.Boot, now.Wall = now.Mono+time.Second, now.Boot+time.Second, now.Wall+1000
				out = h.Tick(now)
			}
			if other || first == nil {
				t.Error("the task is not granted to the other member")
			}
		})
	}
}
