package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// The write budget of a small task: one operation when it is submitted, one when its
// target accepts it, one when its home learns of that. There is none for SENT, for due
// times, for events or for receipts, and no reads beyond the required ones.
func TestWriteBudgetOfATask(t *testing.T) {
	const tasks = 200
	a, b := pair(t, func(_ string, c *Config) { c.Limits.GracefulTimeout = time.Millisecond })
	held := wire.HandlerSpec{Kind: "held", Exec: []string{"/bin/sleep", "600"}, Allow: []string{"role:send"}, Concurrency: 1}
	if err := b.Handlers.Add(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	first := a.submit(t, wire.Request{Target: "b", Kind: "held"}) // takes the only slot, the others wait in custody
	eventually(t, func() bool {
		task, err := a.Views.Task(t.Context(), first)
		return err == nil && task.State == "RUNNING" // reported once it has lasted a second
	}, func() string { return "the first is not running" })
	before := [2]store.Counters{a.storage.Store.Counters(), b.storage.Store.Counters()}
	rs := make([]wire.Request, tasks)
	for i := range rs {
		rs[i] = wire.Request{Target: "b", Kind: "held", Body: make([]byte, 1024)}
	}
	_, errs := a.SubmitMany(t.Context(), rs)
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	submitted := a.storage.Store.Counters()
	if got := submitted.Ops - before[0].Ops; got < tasks || got > 2*tasks+10 {
		t.Errorf("submit of %d tasks: %d operations", tasks, got)
	}
	accepted(t, a, tasks)
	home, target := a.storage.Store.Counters(), b.storage.Store.Counters()
	const slack = 10 // marks, links, the address book
	if got := home.Ops - before[0].Ops; got > 2*tasks+slack {
		t.Errorf("home: %d operations for %d tasks, want 2 each", got, tasks)
	}
	if got := target.Ops - before[1].Ops; got > tasks+slack {
		t.Errorf("target: %d operations for %d tasks, want 1 each", got, tasks)
	}
	if a, b := home.Reads-before[0].Reads, target.Reads-before[1].Reads; a > 0 || b > 0 {
		t.Errorf("%d reads of the home and %d of the target in commits", a, b)
	}
	if groups := home.Groups - before[0].Groups; groups > tasks {
		t.Errorf("home: %d commits for %d tasks: they are not grouped", groups, tasks)
	}
}

// accepted waits until n tasks of a home are accepted by their owner.
func accepted(t *testing.T, a *testNode, n int) {
	t.Helper()
	eventually(t, func() bool { return a.outbox.Stats().ByState[proto.Accepted] == n }, func() string {
		return fmt.Sprintf("want %d accepted tasks, have %v", n, a.outbox.Stats().ByState)
	})
}
