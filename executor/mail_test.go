package executor

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// A run that was cut off is that of a mail in one box: another box may have a mail with the same
// id, and so may another node have sent one to that box.
func TestInterruptedIsOfABox(t *testing.T) {
	id := proto.NewTaskID(time.Now())
	x := &Executor{interrupted: map[cutRun]int{{"agent:raw@alpha", id}: 2}}
	for i, want := range []bool{false, true, true, false} {
		box := []string{"agent:other@alpha", "agent:raw@alpha", "agent:raw@alpha", "agent:raw@alpha"}[i]
		if got := x.Interrupted(box, id); got != want {
			t.Errorf("%d: %s: %v, want %v", i, box, got, want)
		}
	}
}
