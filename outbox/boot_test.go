package outbox

import (
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// A start under a clock that is after its bounds takes no boot number of that time; one under
// a clock within them does, so that the number rises after a rollback of the disk (I5).
func TestBootNumberOfADoubtedClock(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	stamp := clock.NewGuard(clock.NewManual(start).Clock()).Stamp()
	for ahead, want := range map[time.Duration]time.Time{
		20 * 365 * 24 * time.Hour: start,
		30 * 24 * time.Hour:       start.Add(30 * 24 * time.Hour),
	} {
		for _, known := range []bool{true, false} {
			guard := clock.NewGuard(clock.NewManual(start.Add(ahead)).Clock())
			guard.Bound(start.AddDate(0, 0, -1), start, start.AddDate(1, 0, 0))
			doubted := true
			if known {
				if err := guard.Resume(stamp); err != nil {
					t.Fatal(err)
				}
			} else {
				doubted = want.Equal(start)
			}
			s, err := store.Open(mem.New(), store.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			o, err := Open(s, nil, Config{Clock: guard.Clock()})
			if err != nil {
				t.Fatal(err)
			}
			if got := guard.Clock().Doubted(); got != doubted || o.Boot() != uint64(want.Unix()) {
				t.Errorf("%v ahead, stamp %v: boot number %d, want %d; doubted %v", ahead, known, o.Boot(), want.Unix(), got)
			}
		}
	}
}
