package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// later lets time pass on all clocks of b.
func (b *bench) later(d time.Duration) {
	b.now = Now{Wall: b.now.Wall + d.Milliseconds(), Mono: b.now.Mono + d, Boot: b.now.Boot + d}
}

// exchange brings what the owner said to h, and back what h answers. It returns how many
// messages there were.
func (b *bench) exchange(h *Home, out Output) int {
	b.t.Helper()
	var back []Send
	for _, s := range out.Sends {
		switch m := s.Body.(type) {
		case *proto.Renew:
			back = append(back, h.OnRenew(ownerPeer, m, b.now).Sends...)
		case *proto.Release:
			back = append(back, h.OnRelease(ownerPeer, m, b.now).Sends...)
		case *proto.Start:
			back = append(back, h.OnStart(ownerPeer, m, b.now).Sends...)
		case *proto.Outcome:
			r, _ := h.OnResult(ownerPeer, ResultOf(s.Task, m), b.now)
			b.owner.OnResultAnswer(homePeer, r, b.now)
		}
	}
	for _, s := range back {
		switch m := s.Body.(type) {
		case *proto.Renewed:
			b.owner.OnRenewed(homePeer, m, b.now)
		case *proto.ReleaseReply:
			b.owner.OnReleaseReply(homePeer, m, b.now)
		case *proto.Permit:
			b.owner.OnPermit(homePeer, m, b.now)
		}
	}
	return len(out.Sends)
}

// A home that does not know a task any more, for its disk was rolled back, gives no leave
// to start it either: the slot is free again when the lease is over, whatever it answers
// to renewals.
func TestAHomeThatForgotFreesTheSlot(t *testing.T) {
	b := newBench(t, func(x *Task) { x.Mode = proto.AtMostOnce })
	b.owner.OnGrant(homePeer, b.grant, 0, b.now)
	h := NewHome(homePeer, 200, Config{})
	b.exchange(h, b.owner.Ready(b.task.ID, b.now))
	for range 60 {
		b.later(time.Second)
		b.exchange(h, b.owner.Tick(b.now))
	}
	if got := b.owner.runs[b.task.ID].phase; got != proto.LeaseReleased {
		t.Errorf("after four leases it still holds its slot: it is %v", got)
	}
}

// A lease that its home knows nothing of is not renewed by the answer that says so.
func TestAHomeThatForgotRenewsNothing(t *testing.T) {
	b := newBench(t, nil)
	b.owner.OnGrant(homePeer, b.grant, 0, b.now)
	b.owner.Ready(b.task.ID, b.now)
	until := b.owner.runs[b.task.ID].mem.leaseUntil
	h := NewHome(homePeer, 200, Config{})
	b.later(3 * time.Second)
	b.exchange(h, b.owner.Tick(b.now))
	if got := b.owner.runs[b.task.ID].mem.leaseUntil; got != until {
		t.Errorf("it goes on for %v more", got-until)
	}
}

// What an owner has for a home that has forgotten the task is kept, and said now and then,
// while the task may come back; then it is forgotten here too.
func TestWhatAHomeForgotIsForgottenInTheEnd(t *testing.T) {
	for name, end := range map[string]func(b *bench) Output{
		"a result": func(b *bench) Output {
			_, out := b.owner.Finish(b.task.ID, proto.Success, []byte("d"), b.now)
			return out
		},
		"a lease that was given back": func(b *bench) Output {
			return b.owner.Fail(b.task.ID, &proto.Released{Cause: proto.CauseFailed, Reason: "exit 75"}, b.now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			b.owner.OnGrant(homePeer, b.grant, 0, b.now)
			b.owner.Ready(b.task.ID, b.now)
			h := NewHome(homePeer, 200, Config{})
			b.exchange(h, end(b))
			said := 0
			for begin := b.now.Boot; b.now.Boot-begin < 2*time.Hour; b.later(time.Second) { // until an hour after its time
				said += b.exchange(h, b.owner.Tick(b.now))
			}
			if r := b.owner.runs[b.task.ID]; r == nil || r.phase == proto.LeaseClosed {
				t.Fatal("it was thrown away while the task may come back")
			}
			if said == 0 {
				t.Error("it is never said")
			}
			b.later(48 * time.Hour)
			for begin := b.now.Boot; b.now.Boot-begin < 2*time.Hour; b.later(time.Second) {
				b.exchange(h, b.owner.Tick(b.now))
			}
			if r := b.owner.runs[b.task.ID]; r != nil {
				t.Errorf("two days after its time it is still kept and said, as %v", r.phase)
			}
		})
	}
}
