package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// TestATaskThatKillsItsNodeIsFound: a repeatable handler starts before that is on disk. If
// the node dies then, the lease counts as abandoned although its disk knows no start (I7),
// and each later start is on disk first: a task that kills its node each time ends as a
// dead letter, with no attempt spent.
func TestATaskThatKillsItsNodeIsFound(t *testing.T) {
	f := newFixture(t, nil)
	disk := map[string][]byte{}
	const maxDeaths = 10
	deaths := 0
	for ts := f.state(); !ts.state.Terminal(); deaths++ {
		if deaths > maxDeaths {
			t.Fatalf("it still lives after %d deaths: %v", deaths, ts.state)
		}
		out := f.owner.OnGrant(homePeer, f.grant, 0, f.now)
		write(disk, out)
		f.exchange(f.home, out)
		out = f.owner.Ready(f.task.ID, true, f.now)
		if len(out.Starts) != 1 || out.Starts[0].Early != (deaths == 0) {
			t.Fatalf("start %d: %+v", deaths+1, out.Starts)
		}
		if !out.Starts[0].Early {
			write(disk, out)
		}
		f.owner = NewOwner(proto.BootID{byte(deaths + 2)}, Config{})
		for k, v := range disk {
			if err := f.owner.Load(k, v); err != nil {
				t.Fatal(err)
			}
		}
		out = f.owner.Begin(func(proto.TaskID) Policy { return PolicyRetry }, f.now)
		write(disk, out)
		f.exchange(f.home, out)
		if int(ts.abandons) != min(deaths+1, maxDeaths-1) || ts.attempts != 0 {
			t.Fatalf("after %d deaths: %d abandons, %d attempts", deaths+1, ts.abandons, ts.attempts)
		}
		for f.grant = nil; f.grant == nil && !ts.state.Terminal(); {
			f.advance(10 * time.Second)
			for _, s := range f.home.Tick(f.now).Sends {
				if g, ok := s.Body.(*proto.Grant); ok {
					f.grant = g
				}
			}
		}
	}
	if deaths != maxDeaths {
		t.Errorf("it ended after %d deaths, want %d", deaths, maxDeaths)
	}
}

func write(disk map[string][]byte, out Output) {
	for _, w := range out.Writes {
		disk[w.Key] = w.Val
	}
}

// TestNoEarlyStartUnderASecondLease gives back a lease that waited for a slot and grants the task
// again: what waits under the old one may get a slot before the new one is on disk, so its start
// is on disk first.
func TestNoEarlyStartUnderASecondLease(t *testing.T) {
	f := newFixture(t, nil)
	f.exchange(f.home, f.owner.OnGrant(homePeer, f.grant, 0, f.now))
	f.exchange(f.home, f.owner.Return(f.task.ID, "it waited for a slot", 0, f.now))
	f.grant = nil
	f.advance(10 * time.Second)
	for _, s := range f.home.Tick(f.now).Sends {
		if g, ok := s.Body.(*proto.Grant); ok {
			f.grant = g
		}
	}
	if f.grant == nil || f.grant.Attempt != 1 {
		t.Fatalf("the second grant is %v", f.grant)
	}
	f.owner.OnGrant(homePeer, f.grant, 0, f.now)
	if out := f.owner.Ready(f.task.ID, true, f.now); len(out.Starts) != 1 || out.Starts[0].Early {
		t.Errorf("it starts %+v, want one start that is not early", out.Starts)
	}
}
