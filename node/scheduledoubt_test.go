package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

func missedAll(s *wire.ScheduleSpec) { s.Missed, s.MissedCap = "run-all", 100 }

// I14: a home that starts with a wrong clock handles no due time by it, forgets no removed
// schedule, and counts the times of a schedule that is added or resumed meanwhile from when
// its clock is right.
func TestScheduleUnderADoubtedClock(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 3)
	for _, off := range []time.Duration{240 * time.Hour, -240 * time.Hour, 20 * year, -20 * year} {
		run(off.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, ahead := newAheadCluster(t, 1)
				defer c.close()
				s, ctx := c.nodes[0], t.Context()
				c.addSchedule("all", "*/10 * * * *", missedAll)
				c.addSchedule("resumed", "*/10 * * * *", missedAll)
				c.addSchedule("removed", "*/10 * * * *", nil)
				if _, err := s.node.Schedules.Pause(ctx, "build", "resumed", true); err != nil {
					t.Fatal(err)
				}
				if err := s.node.Schedules.Remove(ctx, "build", "removed"); err != nil {
					t.Fatal(err)
				}
				s.halt()
				ahead.Store(int64(off))
				s.start()
				time.Sleep(30 * time.Second)
				if !s.node.guard.State().Doubted {
					t.Fatal("the clock is not doubted")
				}
				c.addSchedule("added", "*/10 * * * *", missedAll)
				if v, err := s.node.Schedules.Pause(ctx, "build", "resumed", false); err != nil || v.Next != nil {
					t.Errorf("resumed: %+v, %v", v, err)
				}
				time.Sleep(30 * time.Second)
				c.wantFirings("often", 1)
				c.wantFirings("all", 0)
				if _, err := s.node.storage.Store.Get(store.Meta, []byte("schedule/build/removed")); err != nil {
					t.Errorf("the record of the removed schedule: %v", err)
				}
				ahead.Store(0)
				time.Sleep(6 * time.Hour)
				c.wantFirings("often", 37)
				for _, name := range []string{"all", "added", "resumed"} {
					c.wantFirings(name, 36)
				}
				all, err := s.node.Schedules.List(ctx)
				for _, v := range all {
					if v.Skipped > 0 || v.Next == nil || time.Until(*v.Next) > 10*time.Minute {
						t.Errorf("%s: %d skipped, next %v", v.Name, v.Skipped, v.Next)
					}
				}
				if err != nil || len(all) != 4 {
					t.Errorf("listed: %+v, %v", all, err)
				}
			})
		})
	}
}

// A home that was off for an hour, and that no member tells the time, treats what was due
// until it believes its clock as missed.
func TestScheduleAfterALongStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newAheadCluster(t, 1)
		defer c.close()
		c.addSchedule("all", "*/10 * * * *", missedAll)
		c.nodes[0].halt()
		time.Sleep(time.Hour)
		c.nodes[0].start()
		time.Sleep(clock.BelieveAfter - time.Second) // it is 1:30:00
		c.wantFirings("often", 1)
		c.wantFirings("all", 0)
		time.Sleep(5 * time.Second)
		c.wantFirings("often", 2)
		c.wantFirings("all", 7)
	})
}
