package node

import (
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// I20: a target that restarts is asked about the tasks it had accepted, in case it
// lost them with a record or by a disk rollback. A task that may run twice is sent
// again, with bodies of every size; for any other a person decides.
func TestForgottenTaskIsSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := newJumpingMesh(t, 2, 0)
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		var twice []string
		for _, size := range []int{0, 100_000, 400_000} {
			r := sleepTask(10*time.Minute, "n1")
			r.Body = append(r.Body, make([]byte, size)...)
			twice = append(twice, home.mustSubmit(r))
		}
		r := sleepTask(10*time.Minute, "n1")
		r.Mode = proto.AtMostOnce.Name()
		once := home.mustSubmit(r)
		kept := home.mustSubmit(sleepTask(10*time.Minute, "n1"))
		for _, id := range append(twice, once, kept) {
			home.waitState(id, "RUNNING", time.Minute)
		}
		target.crash()
		target.deleteTasks(t, append(twice, once))
		target.start()
		for _, id := range append(twice, kept) {
			task := home.waitState(id, "SUCCESS", 45*time.Minute) // so it did not wait for the hourly lookup
			forgotten := slices.ContainsFunc(task.Events, func(e wire.Event) bool { return e.Cause == proto.TaskForgotten.Name() })
			if forgotten == (id == kept) {
				t.Errorf("events of %s: %+v", id, task.Events)
			}
		}
		home.waitState(once, "INDETERMINATE", time.Second)
		if why, err := home.node.Explainer.Why(t.Context(), once); err != nil || why.Cause.Code != wire.NoteForgottenThere {
			t.Errorf("why: %+v, %v", why, err)
		}
		if task, err := home.node.Cancel(t.Context(), once, false, ""); err != nil || task.State != "CANCELLED" {
			t.Errorf("a person ends it: %+v, %v", task, err)
		}
	})
}

// A target is asked again after an hour: a lost answer delays what it says, and no more
// (I20).
func TestLostLookupReplyIsAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var replies atomic.Int32
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			quietMesh(s, cfg)
			configure := cfg.Simulated.Transport
			cfg.Simulated.Transport = func(c *transport.Config) {
				configure(c)
				receive := c.Lookup
				c.Lookup = func(from proto.PeerID, m *proto.Message) {
					if m.GetType() != proto.TypeLookupReply || replies.Add(1) > 1 { // the first is lost
						receive(from, m)
					}
				}
			}
		})
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		id := home.mustSubmit(sleepTask(10*time.Minute, "n1"))
		home.waitState(id, "RUNNING", time.Minute)
		target.crash()
		target.deleteTasks(t, []string{id})
		target.start()
		time.Sleep(5 * time.Minute)
		if task, err := home.node.Views.Task(t.Context(), id); err != nil || task.State != "RUNNING" || replies.Load() != 1 {
			t.Fatalf("%d replies, and the task is %s: %v", replies.Load(), task.State, err)
		}
		home.waitState(id, "SUCCESS", 2*time.Hour)
	})
}

// A second report that a task is not known, which answers a lookup from before the task was sent
// again and comes when it runs already, does not send it once more: it would run a second time
// after its end (I6; the checker reports that).
func TestLateLookupReplyIsIgnored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var replies atomic.Int32
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			quietMesh(s, cfg)
			configure := cfg.Simulated.Transport
			cfg.Simulated.Transport = func(c *transport.Config) {
				configure(c)
				receive := c.Lookup
				c.Lookup = func(from proto.PeerID, m *proto.Message) {
					if m.GetType() == proto.TypeLookupReply && replies.Add(1) == 1 {
						again := &proto.Message{Type: m.GetType(), Payload: slices.Clone(m.GetPayload())}
						time.AfterFunc(30*time.Second, func() { receive(from, again) })
					}
					receive(from, m)
				}
			}
		})
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		id := home.mustSubmit(sleepTask(10*time.Minute, "n1"))
		home.waitState(id, "RUNNING", time.Minute)
		target.crash()
		target.deleteTasks(t, []string{id})
		target.start()
		task := home.waitState(id, "SUCCESS", 2*time.Hour)
		time.Sleep(time.Minute)
		again := 0
		for _, e := range task.Events {
			if e.Cause == proto.TaskForgotten.Name() {
				again++
			}
		}
		if again != 1 || replies.Load() != 1 {
			t.Errorf("%d replies: it was sent again %d times", replies.Load(), again)
		}
	})
}

// A target that was restored from a snapshot, with BALEFIRE_LONG=1 from yesterday's, has lost
// what it accepted after that. Its home sends a task that may run twice again, and the target,
// which may have run it, leaves it to a person; a task that may not run twice is left to a
// person at once (I6, I20).
func TestTaskAcceptedAfterASnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			quietMesh(s, cfg)
			if s.place == 1 {
				cfg.Simulated.Engine, cfg.Store.Engine = nil, datadir.EnginePebble // on the disk
			}
		})
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		snap := filepath.Join(t.TempDir(), "snap")
		if err := target.node.Snapshot(t.Context(), snap, ""); err != nil {
			t.Fatal(err)
		}
		age := time.Minute
		if os.Getenv("BALEFIRE_LONG") != "" {
			age = 24 * time.Hour // costs half a minute
		}
		time.Sleep(age)
		twice := home.mustSubmit(sleepTask(10*time.Minute, "n1"))
		r := sleepTask(10*time.Minute, "n1")
		r.Mode = proto.AtMostOnce.Name()
		once := home.mustSubmit(r)
		home.waitState(twice, "RUNNING", time.Minute)
		home.waitState(once, "RUNNING", time.Minute)
		target.crash()
		if _, err := RestoreStore(target.config(), snap, ""); err != nil {
			t.Fatal(err)
		}
		target.start()
		home.waitState(once, "INDETERMINATE", 5*time.Minute)
		task := home.waitState(twice, "DEAD_LETTER", 5*time.Minute)
		if !slices.ContainsFunc(task.Events, func(e wire.Event) bool { return e.Cause == proto.TaskForgotten.Name() }) || task.Cause != proto.TaskRestored.Name() {
			t.Errorf("%s, events %+v", task.Cause, task.Events)
		}
		for _, id := range []string{twice, once} {
			if n := w.checker.runsOf(id); n != 1 {
				t.Errorf("%d runs of %s", n, id)
			}
		}
	})
}

// deleteTasks deletes the records of tasks in custody of a stopped node.
func (s *simNode) deleteTasks(t *testing.T, refs []string) {
	e := s.engine.Reopen()
	defer func() { s.engine = e }()
	pairs, err := e.Scan(store.Inbox, nil, nil, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var ops []store.Op
	for _, p := range pairs {
		if id, err := proto.TaskIDFrom(p.Key[:16]); err == nil && slices.Contains(refs, id.String()) {
			ops = append(ops, store.Op{Bucket: store.Inbox, Key: p.Key, Delete: true})
		}
	}
	if len(ops) < len(refs) {
		t.Fatalf("%d records of %d tasks", len(ops), len(refs))
	}
	if err := e.Commit(ops); err != nil {
		t.Fatal(err)
	}
}
