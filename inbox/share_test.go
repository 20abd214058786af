package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/idempotency"
)

func from(p proto.PeerID) func(*Arrival) {
	return func(a *Arrival) { a.Header.Origin = p }
}

// flood delivers tasks until one is refused, and returns the accepted ones and the refusal.
func (f *fixture) flood(most int, change ...func(*Arrival)) (taken []Arrival, last Verdict) {
	f.t.Helper()
	for range most {
		a := f.task(change...)
		if last = f.in.Accept(context.Background(), []Arrival{a})[0]; !last.Accepted() {
			return taken, last
		}
		taken = append(taken, a)
	}
	f.t.Fatalf("%d tasks were accepted, and none refused", most)
	return nil, last
}

// Whichever limit one origin reaches, tasks in custody, their bytes or the ids that are
// kept, it is answered BUSY while others are accepted, even after a restart.
func TestFloodOfOneOriginLeavesRoomForOthers(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result { return &handler.Result{Outcome: handler.Success} })
	for _, tt := range []struct {
		name   string
		cfg    Config
		body   string
		least  int // that the flood must get
		others int // that must fit afterwards
	}{
		{"tasks", Config{MaxTasks: 100}, "", 90, 5},
		{"bytes", Config{MaxBytes: 421 << 10}, strings.Repeat("x", 4<<10), 80, 5},
		{"ids", Config{MaxKept: 100}, "", 90, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.cfg, []Spec{spec}, func(f *fixture) {
				taken, v := f.flood(200, withBody(tt.body))
				if v.Code != proto.CodeBusy || len(taken) < tt.least || len(taken) > 95 {
					t.Errorf("%d of one origin were accepted, then %s %q", len(taken), v.Code.Name(), v.Detail)
				}
				for range tt.others {
					f.accept(0, f.task(from(other), withBody(tt.body)))
				}
				f.crash()
				f.accept(proto.CodeBusy, f.task(withBody(tt.body)))
				f.accept(0, taken[0]) // a copy of a known task uses nothing
				f.accept(0, f.task(from(other), withBody(tt.body)))
			})
		})
	}
}

// Ended tasks, and those that could not be written, use no share.
func TestShareComesBack(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result { return &handler.Result{Outcome: handler.Success} })
	inBubble(t, Config{MaxTasks: 20}, []Spec{spec}, func(f *fixture) {
		first, _ := f.flood(30)
		f.run()
		wait(time.Minute)
		for _, a := range first {
			f.expect(a, succeeded)
		}
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
		if idx := f.in.dedup; idx.usage.live != 0 || idx.usage.bytes != 0 || idx.usage.ids != len(idx.ids) {
			t.Errorf("%+v is used by %d ids that have ended", idx.usage, len(idx.ids))
		}
	})
}

// An origin that sends one new idempotency key after another is answered BUSY, with a
// message about its share, before the keys of others are refused; tasks without a key are
// accepted; the same after a restart.
func TestKeysOfOneOriginLeaveRoomForOthers(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result { return &handler.Result{Outcome: handler.Success} })
	inBubble(t, Config{Keys: idempotency.Limits{Max: 100}}, []Spec{spec}, func(f *fixture) {
		n := 0
		fresh := func(a *Arrival) { n++; a.Content.IdempotencyKey = fmt.Sprint("key ", n) }
		f.run()
		wait(time.Minute) // while they are counted, keys made in the meantime may count twice
		taken, v := f.flood(200, fresh)
		if v.Code != proto.CodeBusy || len(taken) != 90 {
			t.Errorf("%d keys of one origin were accepted, then %s %q", len(taken), v.Code.Name(), v.Detail)
		}
		f.accept(0, f.task())
		for range 5 {
			f.accept(0, f.task(from(other), fresh))
		}
		wait(time.Minute)
		for _, a := range taken {
			f.expect(a, succeeded)
		}
		f.restart()
		f.run()
		wait(time.Minute)
		f.accept(proto.CodeBusy, f.task(fresh))
		f.accept(0, f.task(from(other), fresh))
		f.accept(0, f.task(withKey(taken[0].Content.IdempotencyKey))) // it has a place already
	})
}

// An origin with any number of urgent tasks has all slots while it is alone, and all but
// one as soon as another waits, in whichever class; within one class they take turns.
func TestSlotsAreSharedByOrigins(t *testing.T) {
	const slots = 4
	var mu sync.Mutex
	running, most, started := map[proto.PeerID]int{}, map[proto.PeerID]int{}, map[proto.PeerID]int{}
	_, spec := scripted(func(_ context.Context, run *handler.Run) *handler.Result {
		p := run.Origin
		mu.Lock()
		running[p]++
		most[p] = max(most[p], running[p])
		started[p]++
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		running[p]--
		mu.Unlock()
		return &handler.Result{Outcome: handler.Success}
	})
	slotsOf := func(p proto.PeerID) (now, atMost, turns int) {
		mu.Lock()
		defer mu.Unlock()
		return running[p], most[p], started[p]
	}
	class := func(c proto.Class) func(*Arrival) { return func(a *Arrival) { a.Content.Class = c } }
	inBubble(t, Config{Slots: slots}, []Spec{spec}, func(f *fixture) {
		for range 40 {
			f.accept(0, f.task(class(proto.Critical)))
		}
		f.run()
		wait(time.Second)
		if _, n, _ := slotsOf(home); n != slots {
			t.Errorf("alone it has %d of %d slots", n, slots)
		}
		urgent := f.task(from(other), class(proto.Critical))
		f.accept(0, urgent)
		wait(61 * time.Second)
		if n, _, _ := slotsOf(other); n != 1 {
			t.Fatalf("with one slot free after the other %d tasks of the second origin run", n)
		}
		for range 8 {
			f.accept(0, f.task(from(other), class(proto.Low)))
		}
		wait(2 * time.Minute)
		ours, _, oursBefore := slotsOf(home)
		theirs, _, theirsBefore := slotsOf(other)
		if ours != slots-1 || theirs != 1 {
			t.Errorf("while low tasks of another wait: %d and %d run", ours, theirs)
		}
		for range 8 {
			f.accept(0, f.task(from(other), class(proto.Critical)))
		}
		wait(4 * time.Minute)
		_, _, oursAfter := slotsOf(home)
		_, _, theirsAfter := slotsOf(other)
		if oursAfter-oursBefore < 6 || theirsAfter-theirsBefore < 6 {
			t.Errorf("in one class they have %d and %d turns", oursAfter-oursBefore, theirsAfter-theirsBefore)
		}
	})
}
