package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// I14: the time that is left of a granted task counts on the boot clock of its owner, also
// after a restart of the process. After one of the machine its wall clock decides, unless
// that is doubted.
func TestTimeLeftCountsOnTheBootClock(t *testing.T) {
	task := proto.TaskID{1}
	claim := &proto.Claim{Task: task[:], EpochBoot: 100, EpochCounter: 1, Token: filled(7), Generation: 1}
	const wall = int64(1_800_000_000_000)
	ahead := (10 * 24 * time.Hour).Milliseconds()
	for _, tt := range []struct {
		name    string
		machine uint32 // at the restart; 0: none
		now     Now
		starts  bool
	}{
		{"before its end", 0, Now{Wall: wall + 59_000, Boot: time.Hour + 59*time.Second}, true},
		{"after its end", 0, Now{Wall: wall + 61_000, Boot: time.Hour + 61*time.Second}, false},
		{"with a clock set forward", 0, Now{Wall: wall + ahead, Boot: time.Hour + 59*time.Second}, true},
		{"with a clock set back", 0, Now{Wall: wall - ahead, Boot: time.Hour + 61*time.Second}, false},
		{"after a restart of the process, with a clock set forward", 1, Now{Wall: wall + ahead, Boot: time.Hour + 59*time.Second}, true},
		{"after a restart of the machine", 2, Now{Wall: wall + 59_000, Boot: time.Second}, true},
		{"after a restart of the machine, too late", 2, Now{Wall: wall + 61_000, Boot: time.Second}, false},
		{"after a restart of the machine, with a doubted clock", 2, Now{Wall: wall + 61_000, Boot: time.Second, Doubted: true}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := NewOwner(ownerPeer, bootA, Config{Machine: 1})
			out := o.OnGrant(homePeer, &proto.Grant{Claim: claim, Queue: "q", LeaseMs: 15_000, LeftMs: 60_000}, proto.CodeOK, Now{Wall: wall, Boot: time.Hour})
			if tt.machine != 0 {
				o = NewOwner(ownerPeer, bootA, Config{Machine: tt.machine})
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
