package ownership

import (
	"testing"

	"github.com/balefire/balefire/proto"
)

// A hard cancel kills the run of a queued task at once, also after a plain one, and once. It
// is on disk at the home, and goes with the task to another one.
func TestHardCancel(t *testing.T) {
	f := newFixture(t, nil)
	f.exchange(f.home, f.owner.OnGrant(homePeer, f.grant, 0, f.now))
	f.exchange(f.home, f.owner.Ready(f.task.ID, false, f.now))
	cancel := func(hard bool) (out Output, stops []Stop) {
		_, out = f.home.Cancel(f.task.ID, hard, f.now)
		for _, s := range out.Sends {
			if m, ok := s.Body.(*proto.Cancel); ok {
				stops = append(stops, f.owner.OnCancel(homePeer, m, f.now).Stops...)
			}
		}
		return out, stops
	}
	if _, stops := cancel(false); len(stops) != 1 || !stops[0].Cancel || stops[0].Hard {
		t.Errorf("a plain cancel: %+v", stops)
	}
	out, stops := cancel(true)
	if len(stops) != 1 || !stops[0].Cancel || !stops[0].Hard {
		t.Errorf("a hard cancel: %+v", stops)
	}
	m := new(proto.Lease)
	for _, w := range out.Writes {
		if w.Key[0] != keyLease {
			continue
		}
		if err := proto.Decode(w.Val, m); err != nil {
			t.Fatal(err)
		}
	}
	if !m.Cancel || !m.CancelHard || !taskStateOf(f.task, m).cancelHard {
		t.Errorf("on disk it is %v", m)
	}
	for _, hard := range []bool{true, false} {
		if _, stops := cancel(hard); len(stops) != 0 {
			t.Errorf("once more, hard %v: %+v", hard, stops)
		}
	}
	if stops := f.owner.OnCancel(homePeer, &proto.Cancel{Task: f.task.ID[:], Hard: true}, f.now).Stops; len(stops) != 0 {
		t.Errorf("a copy: %+v", stops)
	}
}
