package ownership

import (
	"container/list"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// transit holds the tasks that went to other homes: those handed over and not confirmed,
// which it sends again, and where the others are.
type transit struct {
	byID    map[proto.TaskID]*handoffEntry
	open    list.List     // of *handoffEntry: handed over and not confirmed
	sweptAt time.Duration // when forget ran last
}

// A handoffEntry is a task that went to another home. Until that home has confirmed it, the
// entry holds the state of the task: it is inactive here, and is sent again.
type handoffEntry struct {
	task        proto.TaskID
	queue       string
	home        proto.PeerID
	gen         uint64
	notAfter    int64
	lease       *proto.Lease // nil once the new home has confirmed it
	origin      proto.PeerID // of its lane; zero: all origins
	key         string
	predecessor proto.TaskID // in its lane
	blocked     bool         // its lane is blocked
	sentAt      time.Duration
	wasSent     bool
	cancelSent  time.Duration // when a cancel was last sent after it
	code        proto.Code    // with which the new home last refused it; 0: it did not
	refused     string        // the reason that it gave
	elem        *list.Element
}

func (entry *handoffEntry) record() *proto.Moved {
	m := &proto.Moved{Task: entry.task[:], Queue: entry.queue, Home: entry.home[:], Generation: entry.gen, NotAfterMs: entry.notAfter, Lease: entry.lease, Key: entry.key, Origin: entry.laneKey().originBytes(), Blocked: entry.blocked}
	if !entry.predecessor.IsZero() {
		m.Behind = entry.predecessor[:]
	}
	return m
}

func (entry *handoffEntry) laneKey() laneKey { return laneKey{entry.origin, entry.key} }

// load takes a record that was found at start.
func (tr *transit) load(m *proto.Moved) {
	entry := &handoffEntry{queue: m.Queue, gen: m.Generation, notAfter: m.NotAfterMs, lease: m.Lease, key: m.Key, blocked: m.Blocked}
	copy(entry.task[:], m.Task)
	copy(entry.origin[:], m.Origin)
	copy(entry.predecessor[:], m.Behind)
	copy(entry.home[:], m.Home)
	tr.byID[entry.task] = entry
	if entry.lease != nil {
		entry.elem = tr.open.PushBack(entry)
	}
}

// tails returns the last unconfirmed entry of each lane.
func (tr *transit) tails() (all []*handoffEntry) {
	followed := map[proto.TaskID]bool{}
	for entry := range each[*handoffEntry](&tr.open) {
		followed[entry.predecessor] = true
	}
	for entry := range each[*handoffEntry](&tr.open) {
		if entry.key != "" && !followed[entry.task] {
			all = append(all, entry)
		}
	}
	return all
}

// add adds a task that is handed over.
func (tr *transit) add(entry *handoffEntry, o *Output) {
	tr.byID[entry.task] = entry
	entry.elem = tr.open.PushBack(entry)
	o.put(taskKey(keyMoved, entry.task), entry.record())
}

// remove removes a task that has come back.
func (tr *transit) remove(id proto.TaskID, o *Output) {
	entry := tr.byID[id]
	if entry == nil {
		return
	}
	if entry.elem != nil {
		tr.open.Remove(entry.elem)
	}
	entry.lease = nil
	delete(tr.byID, id)
	o.drop(taskKey(keyMoved, id))
}

// unlink removes a task as the predecessor of those that followed it out earlier. It came
// back since, and is now the last of its lane: they would wait for each other.
func (tr *transit) unlink(id proto.TaskID, o *Output) {
	for entry := range each[*handoffEntry](&tr.open) {
		if entry.predecessor == id {
			entry.predecessor = proto.TaskID{}
			o.put(taskKey(keyMoved, entry.task), entry.record())
		}
	}
}

// resend sends the entries that are new or not confirmed in time. news returns the state of
// a queue that its new home must still be told, or nil.
func (tr *transit) resend(now Now, every time.Duration, news func(queue string) *proto.QueueState, o *Output) {
	for entry := range each[*handoffEntry](&tr.open) {
		if entry.wasSent && now.Mono-entry.sentAt < every {
			continue
		}
		entry.sentAt, entry.wasSent = now.Mono, true
		m := &proto.Handoff{Queue: news(entry.queue), Lease: entry.lease, ClockMs: now.Wall}
		if b := tr.byID[entry.predecessor]; b != nil && b.lease != nil && b.home == entry.home {
			m.Behind, m.BehindGeneration = slices.Clone(entry.predecessor[:]), b.gen
		}
		if entry.blocked {
			m.Blocks = []*proto.LaneBlock{{Queue: entry.queue, Key: entry.key, Origin: entry.laneKey().originBytes()}}
		}
		o.send(entry.home, proto.TypeHandoff, m)
	}
}

// confirm notes that the new home has taken a task, and returns its entry; nil: it was not
// in transit to that home.
func (tr *transit) confirm(from proto.PeerID, a *proto.Moved, o *Output) *handoffEntry {
	id, err := proto.TaskIDFrom(a.Task)
	entry := tr.byID[id]
	if err != nil || entry == nil || entry.home != from || a.Generation < entry.gen || entry.lease == nil {
		o.ignored(id, from, proto.Seq{}, "it confirms a task that was not handed to it, or confirmed it before")
		return nil
	}
	entry.lease = nil
	tr.open.Remove(entry.elem)
	entry.elem = nil
	o.put(taskKey(keyMoved, id), entry.record())
	o.HandedOff = append(o.HandedOff, id)
	return entry
}

// refuse notes why the new home rejects a task now; the task is sent again. NEED_BODY is not
// a rejection: the body is sent first.
func (tr *transit) refuse(from proto.PeerID, a *proto.HandoffRefused, o *Output) {
	id, err := proto.TaskIDFrom(a.Task)
	entry := tr.byID[id]
	if err != nil || entry == nil || entry.home != from || a.Generation != entry.gen || entry.lease == nil {
		o.ignored(id, from, proto.Seq{}, "it refuses a task that is not in transit to it")
		return
	}
	reason := proto.Clip(a.Reason, proto.MaxReason)
	if a.Code == proto.CodeNeedBody || a.Code == entry.code && reason == entry.refused {
		return
	}
	entry.code, entry.refused = a.Code, reason
	o.Events = append(o.Events, Event{Kind: EventNotTaken, Task: id, Queue: entry.queue, Peer: from, Code: a.Code, Detail: reason})
}

// cancel forwards a cancel to the home that a task went to, not again before a while has
// passed. It reports whether the task went to one.
func (tr *transit) cancel(id proto.TaskID, hard bool, now Now, every time.Duration, o *Output) bool {
	entry := tr.byID[id]
	if entry == nil {
		return false
	}
	if entry.cancelSent > 0 && now.Mono-entry.cancelSent < every {
		return true
	}
	entry.cancelSent = max(now.Mono, 1)
	if l := entry.lease; l != nil && (!l.Cancel || hard && !l.CancelHard) {
		l.Cancel, l.CancelHard = true, l.CancelHard || hard // in case the new home does not have it yet
		o.put(taskKey(keyMoved, id), entry.record())
	}
	o.send(entry.home, proto.TypeCancel, &proto.Cancel{Task: slices.Clone(id[:]), Hard: hard, Reason: "cancelled at an earlier home"})
	return true
}

// forget drops entries when no copy of a message can refer to them any more.
func (tr *transit) forget(now Now, cfg Config, o *Output) {
	if now.Mono-tr.sweptAt < 10*time.Minute {
		return
	}
	var old []proto.TaskID
	for id, entry := range tr.byID {
		if entry.lease == nil && now.past(cfg.resultDeadline(entry.notAfter)+cfg.Skew.Milliseconds()) {
			old = append(old, id)
		}
	}
	slices.SortFunc(old, proto.TaskID.Compare)
	for _, id := range old {
		if o.full() {
			return // the rest follows at the next scan
		}
		delete(tr.byID, id)
		o.drop(taskKey(keyMoved, id))
	}
	tr.sweptAt = now.Mono
}
