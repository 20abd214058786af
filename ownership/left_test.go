package ownership

import (
	"math"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// I14: the time that is left of a granted task counts on the boot clock of its owner, also
// after a restart of the process. After one of the machine its wall clock decides, unless
// that is doubted. A time below zero counts as none.
func TestTimeLeftCountsOnTheBootClock(t *testing.T) {
	task := proto.TaskID{1}
	claim := &proto.Claim{Task: task[:], EpochBoot: 100, EpochCounter: 1, Token: filled(7), Generation: 1}
	const wall = int64(1_800_000_000_000)
	ahead := (10 * 24 * time.Hour).Milliseconds()
	for _, tt := range []struct {
		name    string
		left    int64  // of the task, in milliseconds
		machine uint32 // at the restart; 0: none
		now     Now
		starts  bool
	}{
		{"before its end", 60_000, 0, Now{Wall: wall + 59_000, Boot: time.Hour + 59*time.Second}, true},
		{"after its end", 60_000, 0, Now{Wall: wall + 61_000, Boot: time.Hour + 61*time.Second}, false},
		{"with a clock set forward", 60_000, 0, Now{Wall: wall + ahead, Boot: time.Hour + 59*time.Second}, true},
		{"with a clock set back", 60_000, 0, Now{Wall: wall - ahead, Boot: time.Hour + 61*time.Second}, false},
		{"after a restart of the process, with a clock set forward", 60_000, 1, Now{Wall: wall + ahead, Boot: time.Hour + 59*time.Second}, true},
		{"after a restart of the machine", 60_000, 2, Now{Wall: wall + 59_000, Boot: time.Second}, true},
		{"after a restart of the machine, too late", 60_000, 2, Now{Wall: wall + 61_000, Boot: time.Second}, false},
		{"after a restart of the machine, with a doubted clock", 60_000, 2, Now{Wall: wall + 61_000, Boot: time.Second, Doubted: true}, true},
		{"with no time left", 0, 0, Now{Wall: wall + 1, Boot: time.Hour + time.Millisecond}, false},
		{"with a time below zero", -1, 0, Now{Wall: wall + 1, Boot: time.Hour + time.Millisecond}, false},
		{"with the lowest time", math.MinInt64, 0, Now{Wall: wall + 1, Boot: time.Hour + time.Millisecond}, false},
		{"with a time below zero, after a restart of the machine", -1, 2, Now{Wall: wall + 1, Boot: time.Second}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := NewOwner(bootA, Config{Machine: 1})
			out := o.OnGrant(homePeer, &proto.Grant{Claim: claim, Queue: "q", LeaseMs: 15_000, LeftMs: tt.left}, proto.CodeOK, Now{Wall: wall, Boot: time.Hour})
			if tt.machine != 0 {
				o = NewOwner(bootA, Config{Machine: tt.machine})
				for _, w := range out.Writes {
					if err := o.Load(w.Key, w.Val); err != nil {
						t.Fatal(err)
					}
				}
			}
			if out = o.Ready(task, true, tt.now); (len(out.Starts) == 1) != tt.starts {
				t.Errorf("it starts %d times", len(out.Starts))
			}
		})
	}
}
