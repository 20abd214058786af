package ownership

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// A driver that dies at any point between two steps, at the first or a later visit, loses
// nothing and ends nothing twice (I3, I4, I5, I6, I7). Points of handoffs, seizures and
// releases are covered by tests with real processes.
func TestDriversDieAtEveryPoint(t *testing.T) {
	home := []string{PointGrant, PointGranted, PointPermit, PointPermitted, PointEnd, PointEnded, PointReplied}
	owner := []string{PointReceive, PointReceived, PointStart, PointStarted, PointFinish, PointFinished}
	for place, points := range [][]string{home, owner} {
		for _, point := range points {
			for _, visit := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s %d", point, visit), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { dieAtPoint(t, place, point, visit) })
				})
			}
		}
	}
}

var errPoint = errors.New("the process dies")

func dieAtPoint(t *testing.T, place int, point string, visit int) {
	w := newCluster(t, 2, time.Second)
	defer w.close()
	n := w.nodes[place]
	died, visits := make(chan struct{}), 0
	n.crash()
	if point == PointStart || point == PointStarted {
		n.policy = PolicyProbe // the start of a repeatable handler is no step of its own
	}
	n.fail = func(p string) error {
		if p == point {
			visits++
		}
		if visits < visit {
			return nil
		}
		if visits == visit && p == point {
			close(died)
		}
		n.dead.Store(true) // nothing is sent any more
		return errPoint
	}
	n.start()
	w.members()
	const tasks = 12
	once := func(i int) bool { return i%3 == 0 }
	for i := range tasks {
		w.nodes[0].add(i, func(t *Task) {
			if once(i) {
				t.Mode = proto.AtMostOnce
			}
		})
		time.Sleep(500 * time.Millisecond)
	}
	select {
	case <-died:
	case <-time.After(time.Minute):
		t.Fatal("the point was not passed")
	}
	n.crash()
	n.fail = nil
	n.start()
	w.members()
	w.settled(tasks, 10*time.Minute)
	for i := range tasks {
		id, most := testTaskID(i), 2
		if once(i) {
			most = 1
		}
		if starts := w.starts[id]; starts > most {
			t.Errorf("I6: %s was started %d times, and one process died; %d may be", id, starts, most)
		}
		if end := w.ends[id][0]; !once(i) && !strings.HasPrefix(end, "SUCCESS") {
			t.Errorf("%s ended as %s", id, end)
		}
	}
}
