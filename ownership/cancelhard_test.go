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

// A hard cancel of a task whose queue moves kills its run too: it goes with the task, after
// a restart of the old home too, or follows it to its new home.
func TestHardCancelMeetsAHandoff(t *testing.T) {
	for _, tt := range []struct {
		name                    string
		before, inTransit, then []bool // the cancels at the old home, true: hard ones
	}{
		{"before it", []bool{true}, nil, nil},
		{"in transit", nil, []bool{true}, nil},
		{"in transit, after a plain one", nil, []bool{false, true}, nil},
		{"in transit, before a plain one", nil, []bool{true, false}, nil},
		{"at its new home", nil, nil, []bool{true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, disk := newFixture(t, func(x *Task) { x.Sent = homePeer }), map[string][]byte{}
			f.exchange(f.home, f.owner.OnGrant(homePeer, f.grant, 0, f.now))
			f.exchange(f.home, f.owner.Ready(f.task.ID, false, f.now))
			for _, hard := range tt.before {
				f.home.Cancel(f.task.ID, hard, f.now) // the owner does not get it
			}
			out, err := f.home.HandOff("q", otherPeer, f.now)
			if err != nil {
				t.Fatal(err)
			}
			keep(disk, out)
			for _, hard := range tt.inTransit {
				f.advance(f.home.cfg.Heartbeat)
				_, out := f.home.Cancel(f.task.ID, hard, f.now) // what it sends is lost
				keep(disk, out)
			}
			old, to := homeFrom(t, disk), NewHome(otherPeer, 50, Config{})
			old.Begin(f.now)
			f.advance(f.home.cfg.Heartbeat)
			stops := f.deliver(old, to, old.Tick(f.now))
			for _, hard := range tt.then {
				_, out := old.Cancel(f.task.ID, hard, f.now)
				stops = append(stops, f.deliver(old, to, out)...)
			}
			if len(stops) != 1 || !stops[0].Cancel || !stops[0].Hard {
				t.Errorf("its run is stopped: %+v, want one hard cancel", stops)
			}
		})
	}
}

// The run of a task that the queue rejects at its new home is stopped at once.
func TestRunOfATaskThatItsNewHomeDenies(t *testing.T) {
	f := newFixture(t, func(x *Task) { x.Sent = homePeer })
	f.exchange(f.home, f.owner.OnGrant(homePeer, f.grant, 0, f.now))
	f.exchange(f.home, f.owner.Ready(f.task.ID, false, f.now))
	out, err := f.home.HandOff("q", otherPeer, f.now)
	if err != nil {
		t.Fatal(err)
	}
	f.task.Denied = "its origin may not use the queue"
	if stops := f.deliver(f.home, NewHome(otherPeer, 50, Config{}), out); len(stops) != 1 || !stops[0].Cancel {
		t.Errorf("its run is stopped: %+v, want one cancel", stops)
	}
}

// homeFrom returns a home that loaded what the one before it wrote.
func homeFrom(t *testing.T, disk map[string][]byte) *Home {
	t.Helper()
	h := NewHome(homePeer, 101, Config{})
	for key, val := range disk {
		if val == nil {
			continue
		}
		if _, err := h.Load(key, val); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// deliver delivers what the old home sends to the new one, and what that sends to the old home
// and to the owner. It returns the stops of the owner.
func (f *fixture) deliver(old, to *Home, out Output) (stops []Stop) {
	f.t.Helper()
	var sends []Send
	for _, s := range out.Sends {
		switch m := s.Body.(type) {
		case *proto.Handoff:
			sends = append(sends, to.OnHandoff(homePeer, m, f.task, f.now).Sends...)
		case *proto.Cancel:
			sends = append(sends, to.OnCancel(homePeer, m, f.now).Sends...)
		}
	}
	for _, s := range sends {
		switch m := s.Body.(type) {
		case *proto.HandedOff:
			old.OnHandedOff(otherPeer, m, f.now)
		case *proto.Status:
			f.owner.OnStatus(otherPeer, m, f.now)
		case *proto.Cancel:
			stops = append(stops, f.owner.OnCancel(otherPeer, m, f.now).Stops...)
		}
	}
	return stops
}
