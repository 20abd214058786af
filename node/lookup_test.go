package node

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
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
			forgotten := slices.ContainsFunc(task.Events, func(e wire.Event) bool { return e.Cause == outbox.CauseForgotten })
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
