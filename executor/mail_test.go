package executor

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// A run that was cut off is that of one mail in one box: another box may have a mail with the
// same id.
func TestInterruptedIsOfABox(t *testing.T) {
	id := proto.NewTaskID(time.Now())
	x := &Executor{interrupted: map[cutRun]bool{{"agent:raw@alpha", id}: true}}
	for i, want := range []bool{false, true, false} {
		box := []string{"agent:other@alpha", "agent:raw@alpha", "agent:raw@alpha"}[i]
		if got := x.Interrupted(box, id); got != want {
			t.Errorf("%d: %s: %v, want %v", i, box, got, want)
		}
	}
}
