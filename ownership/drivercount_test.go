package ownership

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
)

// From custody at the home of its queue to its end there, a single task costs at most 30
// messages and 6 fsyncs, renewals included, and fewer if there are many.
func TestDriversCountMessagesAndSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, 10*time.Millisecond)
		defer w.close()
		w.nodes[0].driver.SetNode(Node{Member: dispatch.Member{Peer: testPeer(0), Slots: 4}}) // it serves nothing itself
		count := func() (messages, syncs int64) {
			for _, n := range w.nodes {
				messages += n.posts.Load()
				syncs += n.store.Counters().Groups
			}
			return messages, syncs
		}
		const tasks, custody = 50, 1 // one fsync of each task is the inbox's
		spend := func(first int, wait bool) (messages, syncs float64) {
			m, s := count()
			for i := range tasks {
				w.nodes[0].add(first+i, nil)
				if wait {
					w.settled(first+i+1, time.Minute)
				}
			}
			w.settled(first+tasks, time.Minute)
			m2, s2 := count()
			return float64(m2-m) / tasks, float64(s2-s)/tasks + custody
		}
		spend(0, true)
		messages, syncs := spend(tasks, true)
		t.Logf("alone: %.2f messages and %.2f fsyncs a task", messages, syncs)
		if messages > 30 || syncs > 6 {
			t.Errorf("a task alone costs %.2f messages and %.2f fsyncs, want at most 30 and 6", messages, syncs)
		}
		manyMessages, manySyncs := spend(2*tasks, false)
		t.Logf("among %d: %.2f messages and %.2f fsyncs a task", tasks, manyMessages, manySyncs)
		if manyMessages > messages || manySyncs > syncs {
			t.Errorf("a task among many costs %.2f messages and %.2f fsyncs, want no more than alone", manyMessages, manySyncs)
		}
	})
}

// Writes that matter only to the owner wait for the next commit: a node that dies before it
// sends its result again, and the task ends once (I3, I6).
func TestDriversSurviveUnwrittenOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, 10*time.Millisecond)
		defer w.close()
		w.nodes[0].driver.SetNode(Node{Member: dispatch.Member{Peer: testPeer(0), Slots: 4}})
		owner := w.nodes[1]
		w.nodes[0].add(0, nil)
		w.settled(1, time.Minute) // polled every 100 ms, long after the answer
		syncs := owner.store.Counters().Groups
		if syncs != 3 { // the start of the node, and a lease received and finished
			t.Fatalf("the owner has synced %d times", syncs)
		}
		owner.crash()
		owner.start()
		w.members()
		time.Sleep(10 * time.Second)
		w.settled(1, time.Minute)
		if n := w.starts[testTaskID(0)]; n != 1 {
			t.Errorf("it was started %d times", n)
		}
		if running, unanswered, err := owner.driver.Unfinished(t.Context()); running+unanswered > 0 || err != nil {
			t.Errorf("%d runs and %d results are left: %v", running, unanswered, err)
		}
	})
}
