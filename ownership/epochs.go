package ownership

import (
	"container/list"

	"github.com/balefire/balefire/proto"
)

// epochs numbers the leases that a home grants, and knows which of their old ones owners may
// forget.
type epochs struct {
	boot       uint64 // of the epochs of this start
	counter    uint64 // of the newest epoch
	watermarks map[proto.PeerID]proto.Seq
	newest     proto.Seq // the watermark of the owners not in watermarks
}

// next returns an epoch above all that this home granted and all that it received in
// handoffs.
func (e *epochs) next() proto.Seq {
	e.counter++
	return e.last()
}

func (e *epochs) last() proto.Seq { return proto.Seq{Boot: e.boot, Counter: e.counter} }

// raise continues the epochs above a boot number. It reports whether that changed them.
func (e *epochs) raise(boot uint64) bool {
	if e.boot > boot {
		return false
	}
	e.boot, e.counter = boot+1, 0
	return true
}

// put writes the boot number of the epochs of self.
func (e *epochs) put(o *Output, self proto.PeerID) {
	o.put(string(rune(keyHomeBoot))+string(self[:]), &proto.HomeMark{Home: self[:], Boot: e.boot})
}

// maxBoot is far above any boot number, which is about the time in seconds: a member must
// not exhaust the numbers.
const maxBoot = 1 << 40

// plausibleBoot returns the highest boot number that is taken from another node. It is a
// century ahead, so that a home whose clock is decades behind still grants above the epochs
// of former homes. It does not depend on the boot number of this home, so that however
// often that is raised it stays about as far below maxBoot as the clock.
func (n Now) plausibleBoot() uint64 {
	const century = 100 * 365 * 24 * 3600
	return uint64(max(n.Wall/1000, 0)) + century
}

// settle computes for each owner of the live tasks the highest epoch such that no grant up to
// it will be sent to that owner again.
func (e *epochs) settle(live *list.List) {
	e.watermarks, e.newest = map[proto.PeerID]proto.Seq{}, e.last()
	for ts := range each[*taskState](live) {
		if !ts.leased() || ts.mem.acked {
			continue
		}
		if low, ok := e.watermarks[ts.owner]; !ok || ts.epoch.Compare(low) <= 0 {
			e.watermarks[ts.owner] = precedingEpoch(ts.epoch)
		}
	}
}

// watermark returns that of p, as settled last. It never decreases.
func (e *epochs) watermark(p proto.PeerID) proto.Seq {
	if low, ok := e.watermarks[p]; ok {
		return low
	}
	return e.newest
}

// precedingEpoch returns an epoch below e that is not below any lower one with the same
// boot number.
func precedingEpoch(e proto.Seq) proto.Seq {
	if e.Counter == 0 {
		return proto.Seq{Boot: e.Boot - 1, Counter: 1<<64 - 1}
	}
	return proto.Seq{Boot: e.Boot, Counter: e.Counter - 1}
}
