package schedule

import (
	"errors"
	"testing"
	"time"
)

// An error of a schedule is reported when it begins and when it changes, not every
// second.
func TestScheduleErrorIsLoggedOnce(t *testing.T) {
	s := &Scheduler{errors: map[scheduleID]scheduleError{}}
	full, gone := errors.New("full"), errors.New("gone")
	for i, step := range []struct {
		at   time.Duration
		err  error
		want bool
	}{
		{1 * time.Second, nil, false},
		{2 * time.Second, full, true},
		{3 * time.Second, full, false},
		{4 * time.Second, gone, false}, // a moment after the first
		{time.Hour, full, false},
		{2 * time.Hour, gone, true},
		{3 * time.Hour, nil, false},
		{3*time.Hour + time.Second, gone, true},
	} {
		if got := s.noteError(scheduleID{"q", "nightly"}, step.err, step.at); got != step.want {
			t.Errorf("step %d, %v: reported %v, want %v", i, step.err, got, step.want)
		}
		if step.err != nil && s.noteError(scheduleID{"q", "other"}, nil, step.at) {
			t.Errorf("step %d: another schedule has the error too", i)
		}
	}
}
