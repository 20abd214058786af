package ownership

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

const (
	simFaults = 60 * time.Second  // time with faults
	simHeal   = 400 * time.Second // time until everything must be over
	simTasks  = 24
	simSeized = 1000 // in checker.shifts: its tasks may be at two homes for a while
)

// simulate runs one seed.
func simulate(seed uint64) *checker {
	s := newSim(seed)
	s.faults = true
	for i := range simTasks {
		s.at(s.between(0, simFaults), func() { s.submit(i) })
	}
	for d := 2 * time.Second; d < simFaults; d += s.between(200*time.Millisecond, 4*time.Second) {
		s.at(d, s.nemesis)
	}
	for range 3 {
		s.at(s.between(0, simFaults), s.createTitle)
	}
	s.at(simFaults, s.heal)
	s.at(simFaults+time.Second, s.cancelMoved)
	for d := 15 * time.Second; d < simFaults+simHeal; d += 15 * time.Second {
		s.at(d, s.operator)
	}
	for d := 3 * time.Second; d < simFaults+simHeal; d += 3 * time.Second {
		s.at(d, s.repeatCancels)
	}
	s.run(simFaults, nil)
	s.run(simFaults+simHeal, func() bool { return s.now > simFaults+30*time.Second && s.w.settled() })
	for s.w.failed == "" && s.w.disputed() {
		s.w.count("time disputed")
		s.run(s.now+time.Minute, nil)
	}
	if s.w.failed == "" {
		s.run(s.now+20*time.Second, nil) // the last answers
	}
	s.w.counters["messages"], s.w.counters["fsyncs"], s.w.counters["tasks"] = s.msgs, s.syncs, len(s.w.order)
	if s.w.failed == "" {
		s.w.finish()
	}
	return s.w
}

// submit gives a task to the home of its queue, as some node knows it.
func (s *sim) submit(i int) {
	t := &simTask{simRuns: simRuns{starts: make([]int, 7), excused: make([]int, 7), success: make([]int, 7)}}
	binary.BigEndian.PutUint64(t.ID[:], uint64(s.now/time.Millisecond)<<16)
	t.ID[6], t.ID[8], t.ID[15] = 0x70, 0x80, byte(i)
	t.Queue, t.Kind = simQueues[s.rng.IntN(len(simQueues))], "k"
	if s.chance(4) {
		t.Mode = proto.AtMostOnce
	}
	if s.chance(2) {
		t.Key = [...]string{"x", "y"}[s.rng.IntN(2)]
		t.Block = s.chance(3)
	}
	if s.chance(4) {
		t.Options = &proto.TaskOptions{Require: []string{[...]string{"n0", "n1", "n2"}[s.rng.IntN(3)]}}
	}
	t.Class = proto.Class(s.rng.IntN(5))
	t.policy = Policy(s.rng.IntN(3))
	x := s.nodes[s.rng.IntN(len(s.nodes))]
	if x.up && s.chance(5) {
		x = s.nodes[0]
	}
	life := 24 * time.Hour
	if s.chance(6) {
		life = s.between(10*time.Second, 40*time.Second)
	}
	t.NotAfter = x.clock().Wall + life.Milliseconds()
	if s.chance(8) {
		t.NotBefore = (simEpoch + s.now + s.between(5*time.Second, 60*time.Second)).Milliseconds()
	}
	s.w.tasks[t.ID] = t
	s.w.order = append(s.w.order, t.ID)
	y := x
	for range 4 {
		if !y.up || y.paused {
			return
		}
		home, _ := y.home.HomeOf(t.Queue)
		if home == y.peer {
			s.accept(y, t)
			return
		}
		y = s.nodeOf(home)
	}
}

// accept takes custody: the record first, then the core.
func (s *sim) accept(y *simNode, t *simTask) {
	t.Sent = y.peer
	y.apply(Output{}, func(b *simBatch) {
		b.tasks = append(b.tasks, simRecord{t.ID, 'a'})
		b.then = func() { y.apply(y.home.Add(t.Task, y.clock())) }
	})
}

// nemesis causes one fault.
func (s *sim) nemesis() {
	if !s.faults {
		return
	}
	x := s.nodes[s.rng.IntN(len(s.nodes))]
	switch s.rng.IntN(16) {
	case 0:
		for i := range s.group {
			s.group[i] = s.rng.IntN(2 + s.rng.IntN(2))
		}
	case 1:
		a, b := s.rng.IntN(len(s.nodes)), s.rng.IntN(len(s.nodes))
		s.cut[a][b] = !s.cut[a][b]
	case 2:
		s.repair()
	case 3, 4, 5:
		if x.up && s.chance(2) {
			x.doomed = true
			s.at(s.between(5*time.Second, 20*time.Second), x.restart)
		} else if x.up {
			x.crash()
			s.at(s.between(500*time.Millisecond, 20*time.Second), x.restart)
		}
	case 6, 7:
		x.pause(s.between(time.Second, 30*time.Second), s.chance(2))
	case 8:
		x.skew += s.between(-time.Hour, time.Hour)
		s.w.count("clock jump")
	case 9:
		s.handOff(x)
	case 10:
		s.seize(x)
	case 11:
		if s.chance(2) {
			s.impostor()
		} else {
			s.usurper()
		}
		s.forks()
	case 12:
		if x.up && !x.paused {
			s.w.count("graceful stop")
			x.apply(x.owner.Stop(x.clock()))
			x.waiting = nil
			for _, id := range x.running() {
				x.stopProc(Stop{Task: id, Cause: "the node stops"})
			}
			x.after(2*time.Second, func() {
				x.crash()
				s.at(time.Second, x.restart)
			})
		}
	case 14:
		s.replay()
	case 15:
		if x.up && !x.paused {
			s.backUp(x)
		}
	case 13:
		for i := range s.nodes {
			if id, ok := s.anyTask(); ok && s.cancel(s.nodes[(x.i+i)%len(s.nodes)], id) {
				break
			}
		}
	}
}

func (x *simNode) running() (ids []proto.TaskID) {
	for id := range x.procs {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, proto.TaskID.Compare)
	return ids
}

func (s *sim) anyTask() (id proto.TaskID, ok bool) {
	if len(s.w.order) == 0 {
		return id, false
	}
	return s.w.order[s.rng.IntN(len(s.w.order))], true
}

// replay delivers a copy of an older grant.
func (s *sim) replay() {
	for range 8 {
		if len(s.copies) == 0 {
			return
		}
		c := s.copies[s.rng.IntN(len(s.copies))]
		if s.now-c.at < 20*time.Second && c.to.up {
			c.to.on(c.to.inc, func() { c.to.receive(c.from.peer, c.m) })
		}
	}
}

func (s *sim) repair() {
	for i := range s.group {
		s.group[i] = 0
		clear(s.cut[i])
	}
}

// crash stops x at once. Unsynced batches may be on disk, up to any of them.
func (x *simNode) crash() {
	if !x.up {
		return
	}
	keep := x.s.rng.IntN(len(x.queue) + 1)
	for _, b := range x.queue[:keep] {
		x.persist(b)
		x.s.w.count("durable and not acknowledged")
	}
	if keep < len(x.queue) {
		x.s.w.count("unsynced lost")
	}
	for range x.procs {
		x.s.w.count("died while running")
	}
	x.up, x.paused = false, false
	x.inc++
	x.procs = map[proto.TaskID]*simProc{}
}

func (x *simNode) restart() {
	if !x.up {
		x.start()
	}
}

// pause suspends x: the process, or the whole machine.
func (x *simNode) pause(d time.Duration, suspend bool) {
	if !x.up || x.paused {
		return
	}
	x.paused, x.suspends, x.pausedAt = true, suspend, x.s.now
	inc := x.inc
	x.s.at(d, func() {
		if x.inc == inc {
			x.resume()
		}
	})
}

func (x *simNode) resume() {
	if !x.paused {
		return
	}
	x.paused = false
	d := x.s.now - x.pausedAt
	if x.suspends {
		x.slept += d
		x.s.w.count("suspended")
	} else {
		x.s.w.count("paused")
	}
	x.resumed = x.scaled(d) > x.s.cfg.Scan+x.s.cfg.Lease
	late := x.pending
	x.pending = nil
	for _, fn := range late {
		fn()
	}
}

func (s *sim) handOff(x *simNode) {
	if !x.up || x.paused {
		return
	}
	to := s.nodes[s.rng.IntN(len(s.nodes))]
	for _, name := range simQueues {
		for _, y := range s.nodes {
			if y.up && !y.paused && y != to && y.isHome(name) && s.chance(2) {
				s.w.count("queue handed over")
				s.w.shifts[name]++
				if s.chance(3) {
					y.doomed = true
					s.at(s.between(time.Second, 5*time.Second), y.restart)
				}
				out, err := y.home.HandOff(name, to.peer, y.clock())
				if errors.Is(err, errTooManyMoves) { // an admin has to confirm its home
					s.w.count("home confirmed")
					q := y.home.titles.byName[name]
					signed, _ := simDeeds{s.nodes[0]}.Sign(Deed{Queue: name, Generation: q.state.Generation, To: y.peer, Root: q.root})
					out, err = y.home.Confirmed(name, signed, y.clock())
				}
				if err != nil {
					s.w.fail("handoff: %v", err)
				}
				y.apply(out)
			}
		}
	}
}

// isHome reports whether x believes that it is the home of a queue.
func (x *simNode) isHome(name string) bool {
	return string(x.home.Queue(name).GetHome()) == string(x.peer[:])
}

// seize makes x the home of a queue whose home is down.
func (s *sim) seize(x *simNode) {
	name := simQueues[s.rng.IntN(len(simQueues))]
	for _, y := range s.nodes {
		if y.isHome(name) && y != x && x.admin() && x.up && !x.paused && (!y.up || y.paused || !s.linked(x.i, y.i)) {
			s.w.count("seized from a live home")
			s.w.shifts[name] += simSeized
			_, old := x.home.HomeOf(name)
			out, err := x.home.Seize(name, y.peer, x.clock())
			if err != nil {
				s.w.fail("seize: %v", err)
			}
			x.apply(out)
			if _, gen := x.home.HomeOf(name); gen <= old {
				s.w.fail("seize: the generation of %s did not rise", name)
			}
			return
		}
	}
}

// impostor sends what a member must not send: a result, a renewal or a release of another's
// lease, of an earlier start, or with a guessed token.
func (s *sim) impostor() {
	for _, x := range s.nodes {
		if !x.up || x.paused {
			continue
		}
		if e := x.home.ended.order.Back(); e != nil && s.chance(4) { // another result for a task that has ended
			old := e.Value.(*endedTask)
			out := &proto.Outcome{State: proto.Success, BodyDigest: []byte("forgery"), BootId: make([]byte, 16), LeaseToken: make([]byte, 16), EpochBoot: old.epoch.Boot, EpochCounter: old.epoch.Counter}
			x.receive(old.owner, Send{Type: proto.TypeResult, Task: old.task, Body: out})
			return
		}
		for ts := range each[*taskState](x.home.live) {
			if ts.epoch == (proto.Seq{}) {
				continue
			}
			k, from := ts.claim(), ts.owner
			if k.boot == (proto.BootID{}) {
				k.boot[0] = 1
			}
			switch s.rng.IntN(4) {
			case 0:
				from = s.nodes[(int(from[0])+s.rng.IntN(5))%len(s.nodes)].peer
				if from == ts.owner {
					continue
				}
			case 1:
				k.token[3]++
			case 2:
				if ts.boot == (proto.BootID{}) {
					continue
				}
				k.boot[3]++
			case 3:
				k.epoch = precedingEpoch(k.epoch)
			}
			s.w.count("impostor")
			m := k.message()
			out := &proto.Outcome{State: proto.Success, BodyDigest: []byte("forgery"), BootId: m.BootId, LeaseToken: m.Token, EpochBoot: m.EpochBoot, EpochCounter: m.EpochCounter}
			x.receive(from, Send{Type: proto.TypeResult, Task: k.task, Body: out})
			return
		}
	}
}

// cancel cancels a task at a node that knows where it is.
func (s *sim) cancel(x *simNode, id proto.TaskID) bool {
	if !x.up || x.paused {
		return false
	}
	here, moved := x.home.tasks[id] != nil, x.home.transit.byID[id] != nil
	_, out := x.home.Cancel(id, false, x.clock())
	x.apply(out)
	switch {
	case here:
		s.w.count("cancel")
	case moved:
		s.w.count("cancel after a handoff")
		s.w.cancels = append(s.w.cancels, simCancel{x, id})
	}
	return here || moved
}

// cancelMoved cancels tasks that moved and wait, each at a node where it once was.
func (s *sim) cancelMoved() {
	for _, id := range s.w.order {
		for _, x := range s.nodes {
			if t := s.w.tasks[id]; x.home.transit.byID[id] != nil && t.end == nil && s.chance(4) {
				s.cancel(x, id)
			}
		}
	}
}

// repeatCancels repeats the cancels of tasks that moved, as their origins do. After the
// faults one cancel is enough.
func (s *sim) repeatCancels() {
	for _, c := range s.w.cancels {
		x, t := c.at, s.w.tasks[c.task]
		if !x.up || x.paused || t.end != nil {
			continue
		}
		if !s.faults {
			t.cancelsSent++
		}
		_, out := x.home.Cancel(c.task, false, x.clock())
		x.apply(out)
	}
}

// operator unblocks lanes.
func (s *sim) operator() {
	for _, name := range simQueues {
		for _, key := range []string{"x", "y"} {
			s.w.freed[name+key] = s.now
			for _, x := range s.nodes {
				if x.up && !x.paused {
					_, o := x.home.Unblock(name, key, x.clock())
					x.apply(o)
				}
			}
		}
	}
}

// heal ends all faults.
func (s *sim) heal() {
	s.faults = false
	s.repair()
	for _, x := range s.nodes {
		x.skew, x.doomed = 0, false
		if x.paused {
			x.resume()
		}
		if !x.up {
			x.restart()
		}
	}
}

// pump is called at each tick of a node, for the actions of an operator or a cron job.
func (w *checker) pump(*simNode) {}
