package inbox

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
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
