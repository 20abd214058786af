package ownership

import (
	"container/list"

	"github.com/balefire/balefire/proto"
)

// An endedTask is what a home remembers of a task that has ended here.
type endedTask struct {
	task        proto.TaskID
	gen         uint64
	state       proto.TaskState
	epoch       proto.Seq
	owner       proto.PeerID
	digest      []byte
	notAfter    int64
	fromHandoff bool // it came by a handoff, and late copies of that must still find it
}

// byResult reports whether a result of this very lease has ended the task. e may be nil.
func (e *endedTask) byResult(owner proto.PeerID, k claim) bool {
	return e != nil && e.epoch == k.epoch && e.owner == owner && e.digest != nil
}

// endedTasks are the tasks that ended at a home and are still remembered, so that a late
// result is answered and a late handoff cannot revive one.
type endedTasks struct {
	byID  map[proto.TaskID]*list.Element
	order list.List // of *endedTask, oldest first
}

// find returns nil for a task that did not end here, or is forgotten.
func (a *endedTasks) find(id proto.TaskID) *endedTask {
	if e := a.byID[id]; e != nil {
		return e.Value.(*endedTask)
	}
	return nil
}

func (a *endedTasks) add(e *endedTask) {
	a.remove(e.task)
	a.byID[e.task] = a.order.PushBack(e)
}

func (a *endedTasks) remove(id proto.TaskID) {
	if e := a.byID[id]; e != nil {
		a.order.Remove(e)
		delete(a.byID, id)
	}
}

// load takes the record of a task that has ended.
func (a *endedTasks) load(m *proto.Lease) {
	e := &endedTask{
		gen: m.Generation, state: m.State, epoch: proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter},
		digest: m.Digest, notAfter: m.NotAfterMs, fromHandoff: m.Generation > 1,
	}
	copy(e.task[:], m.Task)
	copy(e.owner[:], m.Owner)
	a.add(e)
}

const keepEnded = 50_000 // ended tasks that are remembered to answer late results

// forget drops those that no message can refer to. One that came by a handoff is kept until
// no copy of that can exist.
func (a *endedTasks) forget(now Now, cfg Config, o *Output) {
	over := a.order.Len() - keepEnded
	for e := a.order.Front(); e != nil && over > -64 && !o.full(); {
		x := e.Value.(*endedTask)
		e = e.Next()
		dead := now.past(x.notAfter + cfg.Skew.Milliseconds())
		if dead || over > 0 && !x.fromHandoff {
			a.remove(x.task)
			o.drop(taskKey(keyLease, x.task))
		}
		over--
	}
}
