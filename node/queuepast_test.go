package node

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The home of a queue says of a task that has ended how it did, and who has its record.
func TestHomeTellsHowATaskEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 3, 100*time.Millisecond)
		defer c.close()
		ids := c.give(1, 1)
		c.ended(1, ids, time.Minute)
		time.Sleep(time.Minute)
		for i, want := range []string{"ended here as SUCCESS, last run by n", "", "it was never here"} {
			_, err := c.nodes[i].node.Task(t.Context(), ids[0])
			if want == "" {
				if err != nil {
					t.Errorf("where it was made: %v", err)
				}
			} else if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), want) {
				t.Errorf("node %d: %v, want %q", i, err, want)
			}
		}
	})
}
