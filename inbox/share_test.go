package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/idempotency"
)

func from(p proto.PeerID) func(*Arrival) {
	return func(a *Arrival) { a.From, a.Header.Origin = p, p }
}

// flood hands over tasks until one is refused, and returns those that were
// accepted and the refusal.
func (r *rig) flood(most int, change ...func(*Arrival)) (taken []Arrival, last Verdict) {
	r.t.Helper()
	for range most {
		a := r.task(change...)
		if last = r.in.Accept(context.Background(), []Arrival{a})[0]; !last.Accepted() {
			return taken, last
		}
		taken = append(taken, a)
	}
	r.t.Fatalf("%d tasks were accepted, and none refused", most)
	return nil, last
}

// TestFloodOfOneLeavesRoomForOthers: whichever limit one origin runs into, tasks
// in custody, their bytes or the ids that are kept, it is told BUSY while others
// are taken in, also after a start.
func TestFloodOfOneLeavesRoomForOthers(t *testing.T) {
	_, spec := does(func(context.Context, *Run) *Result { return &Result{Outcome: Success} })
	for _, tt := range []struct {
		name   string
		cfg    Config
		body   string
		least  int // that the flood may have
		others int // that there is room for afterwards
	}{
		{"tasks", Config{MaxTasks: 100}, "", 90, 5},
		{"bytes", Config{MaxBytes: 420 << 10}, strings.Repeat("x", 4<<10), 80, 5},
		{"ids", Config{MaxKept: 100}, "", 90, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, tt.cfg, []Spec{spec}, func(r *rig) {
				taken, v := r.flood(200, withBody(tt.body))
				if v.Code != proto.CodeBusy || len(taken) < tt.least || len(taken) > 95 {
					t.Errorf("%d of one origin were accepted, then %s %q", len(taken), v.Code.Name(), v.Detail)
				}
				for range tt.others {
					r.accept(0, r.task(from(other), withBody(tt.body)))
				}
				r.crash()
				r.accept(proto.CodeBusy, r.task(withBody(tt.body)))
				r.accept(0, taken[0]) // a copy of what is here takes up nothing
				r.accept(0, r.task(from(other), withBody(tt.body)))
			})
		})
	}
}

// TestShareComesBack: what has ended, and what could not be written, takes up no
// share.
func TestShareComesBack(t *testing.T) {
	_, spec := does(func(context.Context, *Run) *Result { return &Result{Outcome: Success} })
	bubble(t, Config{MaxTasks: 20}, []Spec{spec}, func(r *rig) {
		first, _ := r.flood(30)
		r.run()
		wait(time.Minute)
		for _, a := range first {
			r.expect(a, succeeded)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if idx := r.in.dedup; idx.usage.live != 0 || idx.usage.bytes != 0 || idx.usage.ids != len(idx.ids) {
			t.Errorf("%+v is held by %d ids that have ended", idx.usage, len(idx.ids))
		}
	})
}

// TestKeysOfOneLeaveKeysToOthers: an origin that sends one new idempotency key
// after another is told BUSY, in words that name its share, before the keys of
// others are refused; tasks without a key are taken in; so it is after a restart.
func TestKeysOfOneLeaveKeysToOthers(t *testing.T) {
	_, spec := does(func(context.Context, *Run) *Result { return &Result{Outcome: Success} })
	bubble(t, Config{Keys: idempotency.Limits{Max: 100}}, []Spec{spec}, func(r *rig) {
		n := 0
		fresh := func(a *Arrival) { n++; a.Content.IdempotencyKey = fmt.Sprint("key ", n) }
		r.run()
		taken, v := r.flood(200, fresh)
		if v.Code != proto.CodeBusy || !strings.Contains(v.Detail, "your share of the idempotency keys") || len(taken) != 90 {
			t.Errorf("%d keys of one origin were accepted, then %s %q", len(taken), v.Code.Name(), v.Detail)
		}
		r.accept(0, r.task())
		for range 5 {
			r.accept(0, r.task(from(other), fresh))
		}
		wait(time.Minute)
		for _, a := range taken {
			r.expect(a, succeeded)
		}
		r.restart()
		r.run()
		wait(time.Minute)
		r.accept(proto.CodeBusy, r.task(fresh))
		r.accept(0, r.task(from(other), fresh))
		r.accept(0, r.task(withKey(taken[0].Content.IdempotencyKey))) // it has a place already
	})
}

// TestSlotsAreSharedByOrigins: an origin with any number of urgent tasks has all
// slots while it is alone, and all but one from then on that another waits, in
// whichever class; in one class they take turns.
func TestSlotsAreSharedByOrigins(t *testing.T) {
	const slots = 4
	var mu sync.Mutex
	running, most := map[proto.PeerID]int{}, map[proto.PeerID]int{}
	var order []proto.PeerID
	_, spec := does(func(_ context.Context, run *Run) *Result {
		p := run.Origin
		mu.Lock()
		running[p]++
		most[p] = max(most[p], running[p])
		order = append(order, p)
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		running[p]--
		mu.Unlock()
		return &Result{Outcome: Success}
	})
	class := func(c proto.Class) func(*Arrival) { return func(a *Arrival) { a.Content.Class = c } }
	bubble(t, Config{Slots: slots}, []Spec{spec}, func(r *rig) {
		for range 40 {
			r.accept(0, r.task(class(proto.Critical)))
		}
		r.run()
		wait(time.Second)
		if most[home] != slots {
			t.Errorf("alone it has %d of %d slots", most[home], slots)
		}
		urgent := r.task(from(other), class(proto.Critical))
		r.accept(0, urgent)
		wait(61 * time.Second)
		if running[other] != 1 {
			t.Fatalf("with one slot free after the other %d tasks of the second origin run", running[other])
		}
		for range 8 {
			r.accept(0, r.task(from(other), class(proto.Low)))
		}
		wait(2 * time.Minute)
		if running[home] != slots-1 || running[other] != 1 {
			t.Errorf("while low tasks of another wait: %v run", running)
		}
		before := len(order)
		for range 8 {
			r.accept(0, r.task(from(other), class(proto.Critical)))
		}
		wait(4 * time.Minute)
		count := map[proto.PeerID]int{}
		for _, p := range order[before:] {
			count[p]++
		}
		if count[home] < 6 || count[other] < 6 {
			t.Errorf("in one class they have %v turns", count)
		}
	})
}
