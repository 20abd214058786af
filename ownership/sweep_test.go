package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// An owner that ends thousands of tasks a second forgets them at that rate, once their home
// will not send those grants again.
func TestOwnerForgetsAsFastAsItEnds(t *testing.T) {
	const tasks = 4000
	o := NewOwner(bootA, Config{})
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	o.Begin(func(proto.TaskID) Policy { return PolicyRetry }, now)
	for i := range tasks {
		id := testTaskID(i)
		claim := &proto.Claim{Task: id[:], EpochBoot: 1, EpochCounter: uint64(i + 1), Token: make([]byte, 16), Generation: 1, BootId: bootA[:]}
		o.OnGrant(homePeer, &proto.Grant{Claim: claim, Queue: "q", LeaseMs: 15_000, LeftMs: 1e6}, 0, now)
		o.Ready(id, false, now)
		o.Finish(id, proto.Success, nil, now)
		o.OnResultAnswer(homePeer, &proto.Ruling{Task: id[:], EpochBoot: 1, EpochCounter: uint64(i + 1), Token: make([]byte, 16), BootId: bootA[:]}, now)
	}
	if len(o.runs) != tasks {
		t.Fatalf("%d leases are kept, want %d", len(o.runs), tasks)
	}
	o.raiseWatermark(homePeer, proto.Seq{Boot: 1, Counter: tasks})
	for range 2 {
		now.Wall, now.Mono, now.Boot = now.Wall+1000, now.Mono+time.Second, now.Boot+time.Second
		o.Tick(now)
	}
	if len(o.runs) > 0 {
		t.Errorf("%d leases that are over are still kept after two seconds", len(o.runs))
	}
}
