package ownership

import (
	"testing"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A task that was cancelled before it came ends without a grant, when it comes or, if its
// home died first, at the next start.
func TestCancelledBeforeItCame(t *testing.T) {
	for _, restart := range []bool{false, true} {
		f := newFixture(t, nil)
		x := Task{ID: testTaskID(1), Queue: "q", Kind: "k", NotAfter: f.task.NotAfter, Cancelled: true}
		h := f.home
		var out Output
		if restart {
			h = NewHome(homePeer, 101, Config{})
			h.Restore(x, nil, f.now)
			out = h.Begin(f.now)
			h.SetQueue(func(*proto.QueueState) {}, f.now, "q")
		} else {
			out = h.Add(x, f.now)
		}
		if len(out.Ends) != 1 || out.Ends[0].State != proto.Cancelled || out.Ends[0].Task != x.ID {
			t.Errorf("restart %v: it ends as %+v, want once as CANCELLED", restart, out.Ends)
		}
		if len(out.Sends) != 0 || h.tasks[x.ID] != nil {
			t.Errorf("restart %v: it lives, and %d messages are sent", restart, len(out.Sends))
		}
		out = h.SetNode(Node{Member: dispatch.Member{Peer: otherPeer, Alive: true, Kinds: []string{"k"}, Slots: 9}}, f.now)
		if len(out.Sends) != 0 {
			t.Errorf("restart %v: it is granted", restart)
		}
	}
}
