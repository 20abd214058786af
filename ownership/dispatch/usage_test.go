package dispatch

import (
	"testing"
	"time"
)

// A line is a node under load: a task ends, and another one is granted.
type line struct {
	*testing.T
	u   *Usage
	now time.Duration
	m   *Member
}

func newLine(t *testing.T) *line {
	return &line{t, NewUsage(100 * time.Millisecond), time.Hour, member(0, func(m *Member) { m.Kinds = []string{"build", "test"} })}
}

// takes reports whether the node may get a task of some kind.
func (l *line) takes(limits Limits) bool { return AnyTakes([]*Member{l.m}, l.u, limits) }

// fill grants tasks of a kind until the node takes no more, and returns how many it owns.
func (l *line) fill(kind string, limits Limits) int {
	for len(Eligible(nil, &Task{Kind: kind}, []*Member{l.m}, l.u, limits)) > 0 {
		l.u.Add(l.m.Peer, kind, 1, l.now)
	}
	return l.u.OwnedBy(l.m.Peer)
}

// end ends n tasks, one each time.
func (l *line) end(kind string, n int, each time.Duration) {
	for range n {
		l.now += each
		l.u.Ended(l.m.Peer, kind, l.now)
		l.u.Add(l.m.Peer, kind, -1, l.now)
		l.u.Add(l.m.Peer, kind, 1, l.now)
	}
	l.u.Add(l.m.Peer, kind, -1, l.now)
}

// TestGrantsAhead checks how many tasks a node with four slots is granted: those that it ends
// in a tenth of a second beyond its slots, at most 60.
func TestGrantsAhead(t *testing.T) {
	for _, tt := range []struct {
		name   string
		each   time.Duration // a task ends
		ends   int
		limits Limits
		want   int
	}{
		{"none has ended", time.Second, 0, Limits{}, 4},
		{"tasks of seconds", time.Second, 100, Limits{}, 4},
		{"ten a second", 100 * time.Millisecond, 100, Limits{}, 5},
		{"200 a second", 5 * time.Millisecond, 2000, Limits{}, 24},
		{"200 a second, just begun", 5 * time.Millisecond, 20, Limits{}, 5},
		{"10 000 a second", 100 * time.Microsecond, 100_000, Limits{}, 64},
		{"the limit of the queue", 5 * time.Millisecond, 2000, Limits{Queue: 6}, 6},
		{"the limit of each node", 5 * time.Millisecond, 2000, Limits{Node: 3}, 3},
		{"the limit of the kind on each node", 5 * time.Millisecond, 2000, Limits{Kinds: map[string]KindLimit{"build": {Node: 2}}}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLine(t)
			l.u.Add(l.m.Peer, "build", 1, l.now)
			l.end("build", tt.ends, tt.each)
			if got := l.fill("build", tt.limits); got != tt.want {
				t.Errorf("it owns %d, want %d", got, tt.want)
			}
		})
	}
}

// TestNothingIsGrantedAhead checks when a node gets no more tasks than it has slots although
// it ended many before.
func TestNothingIsGrantedAhead(t *testing.T) {
	fast := func(t *testing.T) *line {
		l := newLine(t)
		l.u.Add(l.m.Peer, "build", 1, l.now)
		l.end("build", 2000, 5*time.Millisecond)
		return l
	}
	t.Run("of another kind", func(t *testing.T) {
		if got := fast(t).fill("test", Limits{}); got != 4 {
			t.Errorf("it owns %d", got)
		}
	})
	t.Run("after a while", func(t *testing.T) {
		l := fast(t)
		l.now += 10 * time.Second
		if got := l.fill("build", Limits{}); got != 4 {
			t.Errorf("it owns %d", got)
		}
	})
	t.Run("when one was returned", func(t *testing.T) {
		l := fast(t)
		if l.fill("build", Limits{}); l.takes(Limits{}) {
			t.Fatal("it takes more")
		}
		l.u.Stalled(l.m.Peer, "build", l.now)
		for range 20 {
			if l.u.Add(l.m.Peer, "build", -1, l.now); l.takes(Limits{}) {
				t.Fatalf("it takes another one and owns %d", l.u.OwnedBy(l.m.Peer))
			}
		}
		if l.u.Add(l.m.Peer, "build", -1, l.now); !l.takes(Limits{}) {
			t.Error("it takes none although a slot is free")
		}
	})
	t.Run("when other tasks take its slots", func(t *testing.T) {
		l := fast(t)
		l.m.Busy = 4
		if got := l.fill("build", Limits{}); got != 0 {
			t.Errorf("it owns %d", got)
		}
	})
}

// TestSlowTasksGetSlotsToo checks that fast tasks that were granted ahead keep those of another
// kind from no slot.
func TestSlowTasksGetSlotsToo(t *testing.T) {
	l := newLine(t)
	l.u.Add(l.m.Peer, "build", 1, l.now)
	l.end("build", 2000, 5*time.Millisecond)
	l.fill("build", Limits{})
	l.u.Ended(l.m.Peer, "build", l.now)
	l.u.Add(l.m.Peer, "build", -1, l.now)
	if len(Eligible(nil, &Task{Kind: "test"}, []*Member{l.m}, l.u, Limits{})) == 0 {
		t.Errorf("a slow task is not granted where %d fast ones are owned", l.u.OwnedBy(l.m.Peer))
	}
}

// TestFreeSlotsGoFirst checks that a node that would get a task ahead gets it only if no other
// has a free slot.
func TestFreeSlotsGoFirst(t *testing.T) {
	l := newLine(t)
	l.u.Add(l.m.Peer, "build", 1, l.now)
	l.end("build", 2000, 5*time.Millisecond)
	for range 4 {
		l.u.Add(l.m.Peer, "build", 1, l.now)
	}
	other := member(1, nil)
	first := func() []Candidate {
		return FreeFirst(Eligible(nil, &Task{Kind: "build"}, []*Member{l.m, other}, l.u, Limits{}))
	}
	for range 4 {
		if got := first(); len(got) != 1 || got[0].Peer != other.Peer {
			t.Fatalf("candidates %v, want the one with a free slot", got)
		}
		l.u.Add(other.Peer, "build", 1, l.now)
	}
	if got := first(); len(got) != 1 || got[0].Peer != l.m.Peer || got[0].Free > 0 {
		t.Errorf("candidates %v, want the one that gets it ahead", got)
	}
}

// TestPeak checks for how long what a node owned counts as what it may have reported.
func TestPeak(t *testing.T) {
	u, p := NewUsage(0), peer(0)
	at := func(now, want int) {
		t.Helper()
		if got := u.Peak(p, time.Duration(now)*time.Second); got != want {
			t.Errorf("after %d s it is %d, want %d", now, got, want)
		}
	}
	at(0, 0)
	u.Add(p, "build", 3, 0)
	u.Add(p, "build", -2, time.Second)
	at(2, 3)
	at(6, 3)
	at(11, 1)
	u.Add(p, "build", -1, 12*time.Second)
	at(13, 1)
	at(60, 0)
}
