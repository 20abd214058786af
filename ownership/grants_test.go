package ownership

import (
	"testing"

	"github.com/balefire/balefire/proto"
)

// TestManyGrantsFitARecord checks that a task that was granted many times keeps the first 4 grants and
// the newest 12 (I11).
func TestManyGrantsFitARecord(t *testing.T) {
	ts := &taskState{}
	for wall := range int64(100) {
		ts.recordGrant(wall + 1)
		ts.recordGrantEnd("released", wall+1)
	}
	var got []int64
	for _, g := range ts.record().Grants {
		got = append(got, g.TimeMs)
	}
	if len(got) != proto.MaxAttempts || got[0] != 1 || got[3] != 4 || got[4] != 89 || got[15] != 100 {
		t.Errorf("kept %v", got)
	}
}
