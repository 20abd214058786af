package inbox

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// Tasks that moved with their queue are remembered beyond what their origin settles, up to
// a quarter of all ids, and do not use the room of others.
func TestMovedTasksLeaveRoom(t *testing.T) {
	const most = 20
	inBubble(t, Config{MaxKept: most}, nil, func(f *fixture) {
		f.queues = oneQueue{}
		f.restart()
		f.run()
		queued := func(a *Arrival) { a.Content.Queue = "q" }
		for range 3 * most {
			a := f.task(queued)
			f.accept(0, a)
			if err := f.in.Moved(t.Context(), []proto.TaskID{a.Header.ID}, "elsewhere"); err != nil {
				t.Fatal(err)
			}
			f.in.Settle(home, a.Header.Seq)
			wait(time.Minute)
		}
		for again := range 2 {
			if idx := f.in.dedup; idx.moved != most/4 || idx.usage.ids != len(idx.ids)-idx.moved {
				t.Errorf("start %d: %d are away, and %+v is held, of %d", again, idx.moved, idx.usage, len(idx.ids))
			}
			if n := f.in.dedup.size(); n > 1 {
				t.Errorf("start %d: moved tasks use the room of %d", again, n)
			}
			f.accept(0, f.task(queued))
			f.restart()
		}
	})
}

// adopt takes a task over that is handed over, as its queue does.
func (f *fixture) adopt(a Arrival) error {
	f.t.Helper()
	ad, err := f.in.Adopt(&a)
	if err != nil {
		return err
	}
	var b store.Batch
	ad.Into(&b)
	if err := f.store.Apply(f.t.Context(), &b); err != nil {
		f.t.Fatal(err)
	}
	return nil
}

// reopenFull opens the inbox again with its memory used up, or on a disk without space.
func (f *fixture) reopenFull(memory bool) {
	f.t.Helper()
	cfg := store.Config{Clock: f.cfg.Clock, SweepEvery: -1, CompactEvery: -1}
	if memory {
		cfg.Memory = func() (used, limit int64) { return 2, 1 }
	} else {
		cfg.Space, cfg.Reserve = func() (int64, int64, error) { return 0, 1 << 40, nil }, 1<<20
	}
	f.engine = f.engine.Reopen()
	f.store.Close()
	s, err := store.Open(f.engine, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.store, f.results.store = s, s
	if f.in, err = Open(s, f.parts, f.cfg); err != nil {
		f.t.Fatal(err)
	}
	f.in.Keep(KeeperQueue, f.queues)
}

// A task that is handed over needs the same room as one that arrives: without it, it is
// refused with a code and the reason, and nothing of it is kept. One that is already here
// has its place (I13).
func TestHandedOverTasksNeedRoom(t *testing.T) {
	large := withBody(strings.Repeat("x", 4<<10))
	tests := []struct {
		name   string
		cfg    Config
		fill   int // tasks of one origin that are accepted before
		body   func(*Arrival)
		halted bool
		full   bool // the disk
		memory bool // likewise
		code   proto.Code
		others proto.Code // for a task of another origin
	}{
		{name: "with room", fill: 5},
		{name: "the node is stopping", fill: 5, halted: true, code: proto.CodeDraining, others: proto.CodeDraining},
		{name: "the disk is full", fill: 5, full: true, code: proto.CodeFull, others: proto.CodeFull},
		{name: "the memory is full", fill: 5, memory: true, code: proto.CodeFull, others: proto.CodeFull},
		{name: "as many ids as it can keep", cfg: Config{MaxKept: 5}, fill: 5, code: proto.CodeBusy, others: proto.CodeBusy},
		{name: "as many tasks as it can keep", cfg: Config{MaxTasks: 5}, fill: 5, code: proto.CodeFull, others: proto.CodeFull},
		{name: "the share of ids", cfg: Config{MaxKept: 100}, fill: 90, code: proto.CodeBusy},
		{name: "the share of tasks", cfg: Config{MaxTasks: 100}, fill: 90, code: proto.CodeBusy},
		{name: "the share of bytes", cfg: Config{MaxBytes: 421 << 10}, body: large, code: proto.CodeBusy},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.cfg, nil, func(f *fixture) {
				f.queues = oneQueue{}
				f.restart()
				queued := func(a *Arrival) {
					a.Content.Queue = "q"
					if tt.body != nil {
						tt.body(a)
					}
				}
				var here []Arrival
				if tt.fill == 0 {
					here, _ = f.flood(200, queued)
				}
				for len(here) < tt.fill {
					a := f.task(queued)
					f.accept(0, a)
					here = append(here, a)
				}
				if tt.full || tt.memory {
					f.reopenFull(tt.memory)
				}
				if tt.halted {
					f.in.slots.halt()
				}
				for _, x := range []struct {
					name string
					task Arrival
					code proto.Code
				}{
					{"its origin", f.task(queued), tt.code},
					{"another origin", f.task(queued, from(other)), tt.others},
					{"a task that is here", here[0], 0},
				} {
					ids := f.in.dedup.size()
					err := f.adopt(x.task)
					if x.code == 0 {
						if err != nil {
							t.Errorf("%s: %v", x.name, err)
						}
						continue
					}
					if re, ok := errors.AsType[*RefusedError](err); !ok || re.Refusal() != x.code {
						t.Errorf("%s: %v, want %s", x.name, err, x.code.Name())
					}
					if _, err := f.in.Get(x.task.Header.ID); err == nil || f.in.dedup.size() != ids {
						t.Errorf("%s: the refused task is kept: %v", x.name, err)
					}
				}
			})
		})
	}
}
