package inbox

import (
	"testing"
	"time"
)

// The time of a loss is the one that the node believed. Files without such a time are used
// unless they contradict what is known; then, and in doubt, a later time is safe.
func TestLost(t *testing.T) {
	const day = 24 * time.Hour
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	tests := []struct {
		name   string
		traces Traces
		unsure bool
		want   time.Time
	}{
		{"nothing is known", Traces{}, false, now},
		{"files alone", Traces{Written: ago(day)}, false, ago(day)},
		{"files alone, of the future", Traces{Written: ago(-day)}, false, now},
		{"files alone, of the future, in doubt", Traces{Written: ago(-day)}, true, ago(-day)},
		{"files alone, in doubt", Traces{Written: ago(day)}, true, now},
		{"files after the snapshot", Traces{Copied: ago(2 * day), Written: ago(day)}, false, ago(day)},
		{"files before the snapshot", Traces{Copied: ago(2 * day), Written: ago(3 * day)}, false, now},
		{"files before the audit", Traces{Audited: ago(2 * day), Written: ago(3 * day)}, false, now},
		{"the audit after the files", Traces{Audited: ago(day), Written: ago(day + time.Minute)}, false, ago(day)},
		{"a snapshot after its stamp", Traces{Copied: ago(day), Written: ago(day)}, false, ago(day - stampSlack)},
		{"a stamp and files", Traces{Copied: ago(2 * day), Stamped: ago(day), Written: ago(day - time.Second)}, false, ago(day - time.Second)},
		{"a stamp after the files", Traces{Stamped: ago(day), Written: ago(day + time.Second)}, false, ago(day)},
		{"a stamp and files of the past", Traces{Stamped: ago(day), Written: ago(9 * day)}, false, ago(day - stampSlack)},
		{"a stamp and files of the future", Traces{Stamped: ago(day), Written: ago(-9 * day)}, false, ago(day - stampSlack)},
		{"a snapshot after the stamp", Traces{Copied: ago(day), Stamped: ago(2 * day), Written: ago(2 * day)}, false, ago(day - stampSlack)},
		{"the audit after the stamp", Traces{Stamped: ago(2 * day), Audited: ago(day), Written: ago(2 * day)}, false, ago(day)},
		{"a stamp alone", Traces{Stamped: ago(day)}, true, ago(day - stampSlack)},
		{"a stamp of this minute", Traces{Stamped: now, Written: ago(9 * day)}, false, now},
		{"a stamp of this minute, in doubt", Traces{Stamped: now, Written: ago(9 * day)}, true, now.Add(stampSlack)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.traces.Lost(now, !tt.unsure); !got.Equal(tt.want) {
				t.Errorf("lost until %v, want %v", got.Sub(now), tt.want.Sub(now))
			}
		})
	}
}
