package ownership

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A checker is an observer that sees every disk and every handler, and checks the promises.
type checker struct {
	s        *sim
	failed   string // the first promise that was broken
	tasks    map[proto.TaskID]*simTask
	order    []proto.TaskID
	values   map[uint64]simValue
	counters map[string]int
	history  []porcupine.Operation
	open     map[string]int
	freed    map[string]time.Duration // lane → when an operator last unblocked it
	lanes    map[string][]proto.TaskID
	cancels  []simCancel
	shifts   map[string]int // by queue: how often its home has changed; a seizure counts twice
}

// A simTask is a task with everything that has happened to it.
type simTask struct {
	Task
	simRuns
	simEnd
	policy      Policy
	accepted    bool
	lane        string
	epoch       proto.Seq // of the newest durable grant
	owner       proto.PeerID
	token       Token
	shifts      int // of its queue when it was accepted
	lapses      int
	failures    int
	cancelled   bool // its record on disk is cancelled
	rolled      bool // a disk that was rolled back has lost something of it
	undecided   bool // the disk of a home has
	cancelsSent int  // how often a cancel was sent after the faults ended
}

// A simRuns is what the nodes did with a task.
type simRuns struct {
	starts  []int        // by node
	excused []int        // by node: runs that died, were stopped or failed
	success []int        // by node: on disk
	noted   [7]proto.Seq // by node: the newest start on disk
	seen    [7]proto.Seq // by node: the newest lease on disk
	cut     [7]proto.Seq // by node: the run that its death cut off
}

// A simEnd is how a task ended.
type simEnd struct {
	end       *End
	ends      int
	endedAt   time.Duration
	blockedAt time.Duration
}

// A simCancel is an operator's cancel of a task, at a node that it moved from.
type simCancel struct {
	at   *simNode
	task proto.TaskID
}

type simValue struct {
	task proto.TaskID
	node int
}

func newChecker(s *sim) *checker {
	return &checker{
		s: s, tasks: map[proto.TaskID]*simTask{}, values: map[uint64]simValue{}, counters: map[string]int{}, open: map[string]int{},
		freed: map[string]time.Duration{}, shifts: map[string]int{}, lanes: map[string][]proto.TaskID{},
	}
}

func (w *checker) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf("at %v: ", w.s.now) + fmt.Sprintf(format, args...)
	}
}

// trace prints what happens to one task, for replaying a seed.
func (w *checker) trace(id proto.TaskID, format string, args ...any) {
	if *simOf != "" && strings.HasSuffix(id.String(), *simOf) {
		fmt.Printf("%12v "+format+"\n", append([]any{w.s.now}, args...)...)
	}
}

func (w *checker) count(what string) { w.counters[what]++ }

func (w *checker) policyOf(id proto.TaskID) Policy { return w.tasks[id].policy }

// event counts situations, and checks what only an event shows.
func (w *checker) event(x *simNode, e Event) {
	w.trace(e.Task, "node %d: %v peer %d epoch %v %s", x.i, e.Kind, int(e.Peer[0])-1, e.Epoch, string(e.Cause)+" "+e.Detail)
	w.count(e.Kind.String())
	switch e.Kind {
	case EventGranted:
		if x.home.queue(e.Queue).usage.OwnedBy(e.Peer) > simSlots {
			w.count("granted ahead")
		}
		if x.isolated && e.Peer != x.peer {
			w.fail("I16: node %d believes that it is suspect, and grants %v to node %d", x.i, e.Task, int(e.Peer[0])-1)
		}
		if x.isolated {
			w.count("isolated and granted to itself")
		}
	case EventConflict:
		if e.Queue == simTitle {
			w.count("mailbox created twice")
		}
	case EventLapsed:
		w.tasks[e.Task].lapses++
		if x.isolated {
			w.fail("I16: node %d believes that it is suspect, and reclaims the lease of %v", x.i, e.Task)
		}
		if x.clock().Mono-x.began < w.s.cfg.Lease {
			w.fail("S22: node %d reclaimed the lease of %v within a period of its own start", x.i, e.Task)
		}
		if x.resumed {
			w.fail("S29: node %d reclaimed the lease of %v in the first scan after a pause", x.i, e.Task)
		}
	case EventDeclined, EventReleased: // it may be lost with the batch: it returns never
		w.history = append(w.history, porcupine.Operation{
			ClientId: x.i, Input: regInput{task: e.Task, kind: regRelease, epoch: e.Epoch}, Call: int64(w.s.now), Output: regOutput{unknown: true}, Return: 1 << 62,
		})
	case EventDead:
		w.tasks[e.Task].lapses++
		if x.isolated {
			w.fail("I16: node %d believes that it is suspect, and reclaims the lease of %v from a dead node", x.i, e.Task)
		}
	case EventCrashed:
		w.tasks[e.Task].excused[x.i]++
	case EventEnded:
		t := w.tasks[e.Task]
		t.blockedAt = w.s.now
		// Expired only when it cannot run, or the deadline of its result has passed (I3).
		if t.Task.ID == e.Task && !t.rolled && e.State == proto.Expired {
			for _, y := range w.s.nodes { // also owners of earlier leases
				if y.up && y.procs[e.Task] != nil && y.owner.runs[e.Task] != nil && x.clock().Wall <= w.s.cfg.withDefaults().resultDeadline(t.NotAfter) {
					w.fail("I3: %v expired while it runs on node %d", e.Task, y.i)
				}
			}
		}
	}
}

// idles checks that a home that believes it is suspect continues with its own queues: the
// next task does not wait if the home could take it (I16).
func (w *checker) idles(x *simNode) {
	if !x.isolated {
		return
	}
	h := x.home
	for _, q := range h.order {
		if !q.title.isHome(h.self) || q.title.state.GetPaused() || !q.usage.BelowLimit(q.limits) {
			continue
		}
		var first [fair.Classes]*taskState
		var waits [fair.Classes]bool
		for class := range first {
			first[class] = q.ready[class].firstExcept(nil)
			waits[class] = first[class] != nil
		}
		class := q.picker.Next(waits)
		if class < 0 {
			continue
		}
		ts := first[class]
		if !ts.mayHaveRun() && h.now.Wall <= ts.task.NotAfter && slices.ContainsFunc(h.candidates(q, ts), func(d dispatch.Candidate) bool { return d.Peer == h.self }) {
			w.fail("I16: node %d believes that it is suspect, and does not grant %v to itself", x.i, ts.task.ID)
		}
	}
}

// accepted records that a home has the task on disk.
func (w *checker) accepted(x *simNode, id proto.TaskID) {
	t := w.tasks[id]
	t.accepted, t.shifts = true, w.shifts[t.Queue]
	w.trace(id, "node %d: accepted, lane %q/%q block %v mode %v policy %d", x.i, t.Queue, t.Key, t.Block, t.Mode, t.policy)
	if t.Key != "" {
		_, gen := x.home.HomeOf(t.Queue)
		t.lane = fmt.Sprintf("%d/%d/%s/%s", x.i, gen, t.Queue, t.Key)
		w.lanes[t.lane] = append(w.lanes[t.lane], id)
	}
}

// granted checks I5 when a grant is durable: epochs rise, and each has one owner.
func (w *checker) granted(x *simNode, g simGrant) {
	t := w.tasks[g.task]
	if t.rolled {
		return
	}
	if g.epoch.Compare(t.epoch) <= 0 {
		w.fail("I5: %v was granted %v after %v", g.task, g.epoch, t.epoch)
	}
	if t.end != nil {
		w.fail("I3: %v was granted after its end", g.task)
	}
	if t.cancelled {
		w.fail("cancel: %v was granted after its cancel was on disk", g.task)
	}
	if t.cancelsSent > 4 {
		w.fail("cancel: %v was granted although it has been cancelled for 12 s", g.task)
	}
	t.epoch, t.owner, t.token = g.epoch, g.owner, g.token
	w.history = append(w.history, porcupine.Operation{
		ClientId: x.i, Input: regInput{task: g.task, kind: regGrant, epoch: g.epoch}, Call: int64(g.call), Output: regOutput{ok: true}, Return: int64(w.s.now) + 1,
	})
}

// ended checks I3 and I4 when an end is durable.
func (w *checker) ended(x *simNode, e End) {
	t := w.tasks[e.Task]
	if t.rolled {
		t.end = &e
		return
	}
	t.ends++
	w.trace(e.Task, "node %d: end on disk %v", x.i, e.State)
	if t.end != nil {
		w.fail("I3: %v ended as %v and again as %v on node %d", e.Task, t.end.State, e.State, x.i)
		return
	}
	t.end, t.endedAt = &e, w.s.now
	if e.Cause == 0 && e.State != proto.Success && e.Digest == nil {
		w.fail("I11: %v ended as %v without a cause", e.Task, e.State)
	}
	if e.Digest == nil {
		w.history = append(w.history, porcupine.Operation{
			ClientId: x.i, Input: regInput{task: e.Task, kind: regEnd}, Call: int64(w.s.now), Output: regOutput{ok: true}, Return: int64(w.s.now) + 1,
		})
		limit := int(t.Options.GetMaxAttempts())
		if limit == 0 {
			limit = 3
		}
		if e.Cause == proto.TaskAttemptsUsed && t.failures < limit && t.Mode != proto.AtMostOnce {
			w.fail("I11: %v used up its attempts after %d failures", e.Task, t.failures)
		}
		return
	}
	if len(e.Digest) != 8 {
		w.fail("I2: %v ended with a result that no run produced", e.Task)
		return
	}
	v, ok := w.values[binary.BigEndian.Uint64(e.Digest)]
	y := w.s.nodeOf(e.From)
	switch {
	case !ok || v.task != e.Task:
		w.fail("I2: %v ended with a result that no run produced", e.Task)
	case e.Epoch != t.epoch || e.From != t.owner || y == nil || v.node != y.i:
		w.fail("I4: %v ended with a result of node %d under %v; the newest grant is %v", e.Task, v.node, e.Epoch, t.epoch)
	}
}

// started checks the promises about a start.
func (w *checker) started(x *simNode, st Start) {
	t := w.tasks[st.Task]
	t.starts[x.i]++
	all := 0
	for _, n := range t.starts {
		all += n
	}
	if all > 1 && t.Mode == proto.AtMostOnce && !t.undecided {
		w.fail("I6: %v starts %d times, and its mode is at_most_once", st.Task, all)
	}
	if t.rolled {
		return
	}
	if st.Early {
		w.startedEarly(x, st)
	} else if t.noted[x.i].Compare(st.Epoch) < 0 {
		w.fail("I6: %v starts on node %d and the start is not on disk", st.Task, x.i)
	}
	if x.procs[st.Task] != nil {
		w.fail("I6: %v starts twice at once on node %d", st.Task, x.i)
	}
	if t.success[x.i] > 0 {
		w.fail("I6: %v starts on node %d, where it succeeded", st.Task, x.i)
	}
	limit := int(max(t.Options.GetMaxAttempts(), 3))
	if t.starts[x.i] > limit+t.excused[x.i]+t.lapses {
		w.fail("I6: %d starts of %v on node %d", t.starts[x.i], st.Task, x.i)
	}
	if t.Mode == proto.AtMostOnce && !w.permitted(st) {
		w.fail("I6: %v starts without a permit on any disk", st.Task)
	}
	if t.Key != "" {
		w.inOrder(t)
	}
}

// startedEarly checks that a start that is not on disk is the first attempt of a repeatable
// handler, and that its lease is on disk: otherwise a death of the node would not count.
func (w *checker) startedEarly(x *simNode, st Start) {
	t, m := w.tasks[st.Task], new(proto.OwnerLease)
	v := x.disk[taskKey(keyOwner, st.Task)]
	if v == nil || proto.Decode(v, m) != nil || m.Claim.GetEpochBoot() != st.Epoch.Boot || m.Claim.GetEpochCounter() != st.Epoch.Counter {
		w.fail("I6: %v starts early on node %d and its lease is not on disk", st.Task, x.i)
	}
	if t.policy != PolicyRetry || t.Mode == proto.AtMostOnce || st.Attempt > 1 {
		w.fail("I7: %v starts early on node %d: policy %v, mode %v, attempt %d", st.Task, x.i, t.policy, t.Mode, st.Attempt)
	}
}

// permitted reports whether a permit to start is on a home's disk.
func (w *checker) permitted(st Start) bool {
	for _, x := range w.s.nodes {
		for _, k := range []string{taskKey(keyLease, st.Task), taskKey(keyMoved, st.Task)} {
			m := new(proto.Lease)
			if k[0] == keyMoved {
				g := new(proto.Moved)
				if v := x.disk[k]; v == nil || proto.Decode(v, g) != nil || g.Lease == nil {
					continue
				}
				m = g.Lease
			} else if v := x.disk[k]; v == nil || proto.Decode(v, m) != nil {
				continue
			}
			if m.EpochBoot == st.Epoch.Boot && m.EpochCounter == st.Epoch.Counter && (m.State == proto.Running || m.State == proto.Indeterminate || m.State.Terminal()) {
				return true
			}
		}
	}
	return false
}

// inOrder checks I10: earlier tasks of its lane have ended, and a blocked lane was
// unblocked.
func (w *checker) inOrder(t *simTask) {
	for _, id := range w.lanes[t.lane] {
		p := w.tasks[id]
		if id == t.ID {
			return
		}
		if p.rolled || w.shifts[t.Queue]-t.shifts > 1 || w.shifts[t.Queue] >= simSeized {
			continue // it took another path: order is kept by one home, and over one handoff
		}
		if p.end == nil {
			w.fail("I10: %v starts before %v of its lane has ended", t.ID, id)
			return
		}
		good := p.end.State == proto.Success || p.end.State == proto.Cancelled
		if p.Block && !good && w.freed[t.Queue+t.Key] < p.blockedAt {
			w.fail("I10: %v starts although its lane is blocked since the end of %v", t.ID, id)
			return
		}
	}
}

// failedRun records that a handler failed.
func (w *checker) failedRun(id proto.TaskID) {
	w.tasks[id].failures++
}

func (w *checker) killed(x *simNode, id proto.TaskID) { w.tasks[id].excused[x.i]++ }

// forgotten records what an owner may forget.
func (w *checker) forgotten(x *simNode, wr Write) {
	if wr.Key[0] == keyOwner {
		w.tasks[proto.TaskID([]byte(wr.Key[1:]))].seen[x.i] = proto.Seq{}
	}
}

// written records the starts and successes on disk.
func (w *checker) written(x *simNode, wr Write) {
	if wr.Key[0] == keyLease {
		l := new(proto.Lease)
		if proto.Decode(wr.Val, l) == nil && l.Cancel {
			w.tasks[proto.TaskID(l.Task)].cancelled = true
		}
		return
	}
	m := new(proto.OwnerLease)
	if wr.Key[0] != keyOwner || proto.Decode(wr.Val, m) != nil {
		return
	}
	t, e := w.tasks[proto.TaskID(m.Claim.Task)], proto.Seq{Boot: m.Claim.EpochBoot, Counter: m.Claim.EpochCounter}
	if e.Compare(t.seen[x.i]) < 0 && !t.rolled {
		w.fail("I4: node %d went back from %v to %v for %v", x.i, t.seen[x.i], e, t.ID)
	}
	t.seen[x.i] = e
	switch {
	case m.Phase == proto.LeaseStarted:
		t.noted[x.i] = e
	case m.Phase == proto.LeaseFinished && m.State == proto.Success:
		t.success[x.i] = 1
	}
}

// value returns a result that only one run can produce.
func (w *checker) value(x *simNode, id proto.TaskID) []byte {
	n := uint64(len(w.values) + 1)
	w.values[n] = simValue{id, x.i}
	return binary.BigEndian.AppendUint64(nil, n)
}

// fenced checks I4: a claim below the newest durable grant changes no record.
func (x *simNode) fenced(claims []*proto.Claim, input func() Output) {
	type before struct {
		c     *taskState
		until time.Duration
		state proto.TaskState
	}
	var old []before
	for _, m := range claims {
		k, ok := claimFrom(m)
		ts := x.home.tasks[k.task]
		if ok && ts != nil && !x.s.w.tasks[k.task].rolled && k.epoch.Compare(x.s.w.tasks[k.task].epoch) < 0 {
			old = append(old, before{ts, ts.mem.leaseUntil, ts.state})
		}
	}
	out := input()
	for _, b := range old {
		if x.home.tasks[b.c.task.ID] == b.c && (b.c.mem.leaseUntil > b.until || b.c.state != b.state) && !slices.ContainsFunc(out.Events, func(e Event) bool { return e.Kind == EventGranted && e.Task == b.c.task.ID }) {
			x.s.w.fail("I4: an older claim changed the lease of %v on node %d", b.c.task.ID, x.i)
		}
		for _, e := range out.Ends {
			if e.Task == b.c.task.ID {
				x.s.w.fail("I4: an older claim ended %v on node %d", e.Task, x.i)
			}
		}
	}
	x.apply(out)
}

func takenClaims(m *proto.Granted) (out []*proto.Claim) {
	for _, t := range m.Taken {
		out = append(out, t.Claim)
	}
	return out
}

func releasedClaims(m *proto.Release) (out []*proto.Claim) {
	for _, t := range m.Released {
		out = append(out, t.Claim)
	}
	return out
}

func heldClaims(m *proto.StatusReply) (out []*proto.Claim) {
	for _, t := range m.Held {
		out = append(out, t.Claim)
	}
	return out
}

// The history of each task as a register that is written once, fenced by epochs.

const (
	regGrant = iota
	regCommit
	regEnd
	regRelease // the home takes a lease back that its owner releases
)

type regInput struct {
	task  proto.TaskID
	kind  int
	epoch proto.Seq
	val   uint64
}

type regOutput struct{ ok, unknown bool }

type regState struct {
	epoch    proto.Seq
	val      uint64
	released bool
}

const regClosed = 1<<64 - 1 // ended by its home

var regModel = porcupine.Model{
	Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
		at := map[proto.TaskID]int{}
		var out [][]porcupine.Operation
		for _, o := range h {
			id := o.Input.(regInput).task
			i, ok := at[id]
			if !ok {
				i = len(out)
				at[id] = i
				out = append(out, nil)
			}
			out[i] = append(out[i], o)
		}
		return out
	},
	Init: func() any { return regState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(regState), input.(regInput), output.(regOutput)
		switch in.kind {
		case regGrant:
			return in.epoch.Compare(s.epoch) > 0 && s.val == 0, regState{epoch: in.epoch}
		case regEnd:
			return s.val == 0, regState{epoch: s.epoch, val: regClosed}
		}
		if in.kind == regRelease {
			s.released = s.released || s.epoch == in.epoch
			return true, s
		}
		counts := s.val == in.val || s.val == 0 && in.epoch == s.epoch && !s.released
		switch {
		case out.unknown && !counts:
			return true, s
		case !out.unknown && out.ok != counts:
			return false, s
		case counts:
			return true, regState{epoch: s.epoch, val: in.val}
		}
		return true, s
	},
}

func regKey(node proto.PeerID, id proto.TaskID, e proto.Seq) string {
	return fmt.Sprintf("%d/%x/%v", node[0], id[:], e)
}

// offered records that an owner begins to send a result. Copies of it are the same call.
func (w *checker) offered(x *simNode, id proto.TaskID, m *proto.Outcome) {
	e := proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter}
	k := regKey(x.peer, id, e)
	if i, ok := w.open[k]; ok && w.history[i].Output.(regOutput).unknown {
		return
	}
	if len(m.BodyDigest) != 8 {
		return
	}
	w.open[k] = len(w.history)
	w.history = append(w.history, porcupine.Operation{
		ClientId: x.i, Input: regInput{id, regCommit, e, binary.BigEndian.Uint64(m.BodyDigest)}, Call: int64(w.s.now), Output: regOutput{unknown: true}, Return: 1 << 62,
	})
}

// answered records a home's answer to a result.
func (w *checker) answered(x *simNode, _ proto.PeerID, m *proto.Ruling) {
	if m.Code != proto.CodeOK && m.Code != proto.CodeStale {
		return
	}
	i, ok := w.open[regKey(x.peer, proto.TaskID(m.Task), proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter})]
	if !ok || !w.history[i].Output.(regOutput).unknown {
		return
	}
	w.history[i].Output = regOutput{ok: m.Code == proto.CodeOK}
	w.history[i].Return = int64(w.s.now) + 1
}

// disputed reports whether a task waits for the clock of its home: it has expired by the
// clock of another node, which does not start it any more. Here clocks may run up to four
// times as fast as others, even after the faults.
func (w *checker) disputed() bool {
	for _, id := range w.order {
		t := w.tasks[id]
		if !t.accepted || t.end != nil || t.rolled {
			continue
		}
		over, waits := false, false
		for _, x := range w.s.nodes {
			over = over || x.clock().Wall > t.NotAfter
			waits = waits || x.home.tasks[id] != nil && x.clock().Wall <= w.s.cfg.resultDeadline(t.NotAfter)
		}
		if over && waits {
			return true
		}
	}
	return false
}

// finish checks what must be true when all faults are over.
func (w *checker) finish() {
	for _, id := range w.order {
		t := w.tasks[id]
		switch {
		case t.rolled && t.end == nil: // it may wait where its owner knows a later home
		case t.accepted && t.end == nil:
			w.fail("I20: %v has not ended: %s", id, w.where(id))
		case !t.accepted && t.end != nil && !t.rolled:
			w.fail("I2: %v ended and was not accepted", id)
		}
	}
	for _, name := range simNames {
		first := ""
		for _, x := range w.s.nodes {
			q := x.home.Queue(name)
			if q == nil {
				if homes := w.homes(name); homes != "" && name == simTitle {
					w.fail("node %d has not heard of %s:%s", x.i, name, homes)
				}
				continue
			}
			if first == "" {
				first = string(q.Home)
			}
			if string(q.Home) != first {
				w.fail("seize: nodes do not agree on the home of %s:%s", name, w.homes(name))
			}
		}
	}
	for _, x := range w.s.nodes {
		for _, id := range w.order {
			v := x.disk[taskKey(keyOwner, id)]
			if v == nil {
				continue
			}
			m := new(proto.OwnerLease)
			if proto.Decode(v, m) != nil {
				continue
			}
			if started := m.Phase == proto.LeaseStarted; started && x.procs[id] == nil {
				w.fail("I7, S38: node %d reports that %v runs, and nothing runs", x.i, id)
			}
		}
	}
	w.history = slices.DeleteFunc(w.history, func(o porcupine.Operation) bool { return w.tasks[o.Input.(regInput).task].rolled })
	if w.failed == "" {
		switch porcupine.CheckOperationsTimeout(regModel, w.history, 10*time.Second) {
		case porcupine.Illegal:
			w.fail("the history of a task is not that of a fenced register:%s", w.illegal())
		case porcupine.Unknown:
			w.fail("the history could not be checked in time")
		}
	}
}

// homes describes what each node knows about a queue.
func (w *checker) homes(name string) (out string) {
	for _, x := range w.s.nodes {
		if q := x.home.titles.byName[name]; q.known() {
			out += fmt.Sprintf("\n  node %d: %d since %d by", x.i, q.state.Home[0]-1, q.state.Generation)
			for _, d := range q.deeds {
				out += fmt.Sprintf(" (%d: %d to %d seized %v)", d.Generation, int(d.From[0])-1, d.To[0]-1, d.Seized)
			}
		}
	}
	return out
}

// where describes where a task is, for replaying a seed.
func (w *checker) where(id proto.TaskID) (out string) {
	for _, x := range w.s.nodes {
		if ts := x.home.tasks[id]; ts != nil {
			if l := ts.mem.lane; l != nil {
				out += fmt.Sprintf("[lane blocked %v, %d tasks, first %v] ", l.blocked, len(l.tasks), l.tasks[0].task.ID)
			}
			out += fmt.Sprintf("[state at %d: %v epoch %v gen %d owner %d released %v lapsed %v taken %v cancel %v ready %v] ", x.i, ts.state.Name(), ts.epoch, ts.gen, ts.owner[0]-1, ts.released, ts.mem.lapsed, ts.mem.acked, ts.cancel, ts.mem.ready != nil)
		}
		if entry := x.home.transit.byID[id]; entry != nil {
			out += fmt.Sprintf("[moved at %d to %d gen %d open %v] ", x.i, int(entry.home[0])-1, entry.gen, entry.lease != nil)
		}
		if e := x.home.ended.find(id); e != nil {
			out += fmt.Sprintf("[ended at %d] ", x.i)
		}
		if r := x.owner.runs[id]; r != nil {
			out += fmt.Sprintf("[run at %d: %v epoch %v alive %v home %d] ", x.i, r.phase, r.claim.epoch, r.mem.alive, int(r.home[0])-1)
		}
	}
	return out
}

// illegal returns the first history that is impossible.
func (w *checker) illegal() (out string) {
	for _, part := range regModel.Partition(w.history) {
		if porcupine.CheckOperations(regModel, part) {
			continue
		}
		for _, o := range part {
			in := o.Input.(regInput)
			out += fmt.Sprintf("\n  node %d %s epoch %v value %d from %v to %v: %+v", o.ClientId, [...]string{"grants", "commits", "ends", "reclaims"}[in.kind], in.epoch, in.val, time.Duration(o.Call), time.Duration(o.Return), o.Output)
		}
		return fmt.Sprintf(" %v", part[0].Input.(regInput).task) + out + "\n  " + w.where(part[0].Input.(regInput).task)
	}
	return ""
}
