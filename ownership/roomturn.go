package ownership

import (
	"context"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

func (t *turn) reset() {
	*t = turn{
		writes: map[string][]byte{}, rulings: map[proto.PeerID][]*proto.Ruling{}, came: map[string][]byte{},
		done: map[proto.TaskID]*proto.Outcome{},
	}
}

// silent reports whether nothing but writes, and lines of the timeline, would come of
// t.
func (t *turn) silent() bool {
	o := t.out
	o.Writes, o.Events = nil, nil
	return o.Empty() && len(t.rulings)+len(t.with)+len(t.after) == 0 &&
		!slices.ContainsFunc(t.order, func(key string) bool { return key[0] == keyQueue })
}

// write adds a write: the last one of a key counts.
func (t *turn) write(w Write) {
	if _, ok := t.writes[w.Key]; !ok {
		t.order = append(t.order, w.Key)
	}
	t.writes[w.Key] = w.Val
	t.bytes += w.size()
}

// writePieces writes what is too big for one record, and returns in how many.
func (t *turn) writePieces(prefix byte, id proto.TaskID, b []byte) (pieces int) {
	for piece := range slices.Chunk(b, maxPiece) {
		t.write(Write{Key: pieceKey(prefix, id, pieces), Val: piece})
		pieces++
	}
	return pieces
}

func (t *turn) dropPieces(prefix byte, id proto.TaskID, pieces int) {
	for n := range pieces {
		t.write(Write{Key: pieceKey(prefix, id, n)})
	}
}

func pieceKey(prefix byte, id proto.TaskID, piece int) string {
	return taskKey(prefix, id) + string([]byte{byte(piece)})
}

// add takes what an input asks for into this turn. It reports whether it has: what asks
// for a record that the store does not take is dropped, with all that would come of it,
// and held against whoever sent it. See [Room.mend].
func (r *Room) add(o Output) bool {
	if err := r.unfit(o.Writes); err != nil {
		r.spoiled = true
		r.cfg.Logger.Warn("what a member says is dropped: the store does not take it", "from", r.from.Short(), "err", err)
		r.turn.out.Events = append(r.turn.out.Events, Event{Kind: EventForged, Peer: r.from, Cause: proto.Clip(err.Error(), 128)})
		if r.cfg.Offend != nil && !r.from.IsZero() {
			r.cfg.Offend(r.from, err)
		}
		return false
	}
	t := &r.turn
	for _, w := range o.Writes {
		t.write(w)
	}
	for _, s := range o.Starts {
		r.policyOf(s.Task)
	}
	t.out.Ends = append(t.out.Ends, o.Ends...)
	t.out.Sends = append(t.out.Sends, o.Sends...)
	t.out.Orphans = append(t.out.Orphans, o.Orphans...)
	t.out.Events = append(t.out.Events, o.Events...)
	t.out.Waits = append(t.out.Waits, o.Waits...)
	t.out.Starts = append(t.out.Starts, o.Starts...)
	t.out.Stops = append(t.out.Stops, o.Stops...)
	t.out.Probes = append(t.out.Probes, o.Probes...)
	t.out.Gone = append(t.out.Gone, o.Gone...)
	t.out.Lends = append(t.out.Lends, o.Lends...)
	return true
}

// unfit says why the store would refuse one of the writes of the home. Those of the owner
// have nothing in them that is as large as others want it.
func (r *Room) unfit(writes []Write) error {
	for _, w := range writes {
		if err := r.store.Fits(len(w.Val)); err != nil && w.Key[0] != keyOwner {
			return fmt.Errorf("it says what cannot be kept: %w", err)
		}
		if len(w.Key) > store.MaxKey {
			return fmt.Errorf("it says what cannot be kept: a key of %d bytes, limit %d", len(w.Key), store.MaxKey)
		}
	}
	return nil
}

// policyOf writes what the node does about a task if it dies while that runs, with
// the start.
func (r *Room) policyOf(id proto.TaskID) {
	r.turn.write(Write{Key: taskKey(keyPolicy, id), Val: []byte{byte(r.policies[id])}})
}

// flush makes durable what the inputs of this turn asked for, then does it. A turn of
// which nobody would hear is written with the next one, or with all: a node that dies
// in between has as good as never received what it was about. After an error the
// machines know more than the disk: the room must be opened anew.
func (r *Room) flush(ctx context.Context, all bool) error {
	r.tidy()
	if !all && r.turn.silent() && len(r.turn.order)+len(r.turn.out.Events) < maxTurn && r.turn.bytes < maxTurnBytes {
		return nil
	}
	t := r.turn
	r.turn.reset()
	err := r.pass(&t, func() error {
		defer clear(r.claims)
		return r.commit(ctx, &t)
	}, func() { r.act(&t) })
	for _, f := range t.after {
		f(err)
	}
	return err
}

// tidy forgets what the machines have no use for any more: results that were
// answered, and policies of what is over. Only what this turn writes can have become
// so.
func (r *Room) tidy() {
	for _, key := range r.turn.order {
		if key[0] == keyOwner {
			r.tidyOne(proto.TaskID([]byte(key[1:])))
		}
	}
}

func (r *Room) tidyOne(id proto.TaskID) {
	x := r.owner.runs[id]
	if _, ok := r.results[id]; ok && (x == nil || x.phase != proto.LeaseFinished) {
		r.dropResult(id)
	}
	if _, ok := r.policies[id]; !ok || x != nil && (x.mem.alive || x.phase == proto.LeaseStarted || x.phase == proto.LeaseReceived) {
		return
	}
	delete(r.policies, id)
	r.turn.write(Write{Key: taskKey(keyPolicy, id)})
	r.dropProbe(id)
}

// commit writes a turn. What ends is written with its cell, and its lane if that stands
// still, each in a batch of its own beside the rest: of nothing in this turn anybody
// has heard, so a node that dies in between finds itself before some of it, and does
// that again. The custody of tasks that came is written before any end: one of them may
// have ended already.
func (r *Room) commit(ctx context.Context, t *turn) error {
	var steps []func() error
	mine := map[string]bool{}
	for _, e := range t.out.Ends {
		keys := []string{taskKey(keyLease, e.Task)}
		if e.block != "" {
			keys = append(keys, e.block)
		}
		for _, key := range keys {
			mine[key] = true
		}
		o := r.claims[e.Task]
		steps = append(steps, func() error {
			return r.with.Custody.End(ctx, e, o, func(b *store.Batch) { t.into(b, keys...) })
		})
	}
	var rest store.Batch
	for _, key := range t.order {
		if !mine[key] {
			t.into(&rest, key)
		} else if val, ok := t.came[key]; ok {
			rest.Put(store.Leases, []byte(key), val)
		}
	}
	for _, with := range t.with {
		with(&rest)
	}
	if rest.Len() > 0 {
		if t.shares() {
			r.store.Raise(&rest) // an older version would run such a task without its lease
		}
		apply := func() error { return r.store.Apply(context.WithoutCancel(ctx), &rest) }
		if len(t.with) > 0 {
			if err := apply(); err != nil {
				return err
			}
		} else {
			steps = append(steps, apply)
		}
	}
	if len(steps) == 0 {
		return nil
	}
	return onceAll(steps)
}

// into adds the writes of these keys to b.
func (t *turn) into(b *store.Batch, keys ...string) {
	for _, k := range keys {
		if val := t.writes[k]; val == nil {
			b.Delete(store.Leases, []byte(k))
		} else {
			b.Put(store.Leases, []byte(k), val)
		}
	}
}

// shares reports whether the turn writes anything of shared queues: the number of
// this start is written by every node.
func (t *turn) shares() bool {
	return slices.ContainsFunc(t.order, func(k string) bool { return k[0] != keyMark && t.writes[k] != nil })
}

// act does what is durable.
func (r *Room) act(t *turn) {
	for _, k := range t.order {
		if k[0] == keyQueue {
			r.publish()
			if r.cfg.Queue != nil {
				r.cfg.Queue(k[1:])
			}
		}
	}
	results := map[proto.PeerID][]Sealing{}
	for _, s := range together(t.out.Sends) {
		if lease, ok := s.Body.(*proto.Outcome); ok && s.To != r.cfg.Self {
			if o := r.whole(s.Task, lease); o != nil {
				results[s.To] = append(results[s.To], Sealing{s.Task, o})
			}
			continue
		}
		r.send(s)
	}
	for home, all := range results {
		for some := range slices.Chunk(all, proto.MaxGroup) {
			r.sendResults(home, some)
		}
	}
	for p, all := range t.rulings {
		for some := range slices.Chunk(all, proto.MaxGroup) {
			r.send(Send{To: p, Type: proto.TypeCommitted, Body: &proto.Committed{Rulings: some}})
		}
	}
	for _, id := range t.out.Waits {
		if g, ok := r.grants[id]; ok {
			r.with.Runner.Wait(g.from, g.msg)
		}
	}
	for _, s := range t.out.Starts {
		if c := r.ready[s.Task]; c != nil {
			r.alive[s.Task] = true
			c <- s
			delete(r.ready, s.Task)
			delete(r.grants, s.Task)
		}
	}
	for _, s := range t.out.Stops {
		r.with.Runner.Stop(s.Task, s.Cancel)
	}
	r.release()
	r.letGo(t.out.Gone)
	for _, l := range t.out.Lends {
		r.with.Bodies.Lend(l.Task, l.Owner)
	}
	for id, o := range t.done {
		r.with.Bodies.Forget(id, o)
	}
	if len(t.out.Events) > 0 && r.cfg.Events != nil {
		r.cfg.Events(t.out.Events)
	}
	if len(t.out.Orphans) > 0 && r.cfg.Orphan != nil {
		r.cfg.Orphan(t.out.Orphans)
	}
	for _, id := range t.out.Probes {
		if x := r.owner.runs[id]; x != nil {
			r.with.Asker.Probe(x.giver, r.probes[id].grant)
		}
	}
}

// letGo tells of the tasks that their new homes have.
func (r *Room) letGo(ids []proto.TaskID) {
	gone := map[proto.PeerID][]proto.TaskID{}
	for _, id := range ids {
		if g := r.home.moved[id]; g != nil {
			gone[g.home] = append(gone[g.home], id)
		}
	}
	for home, ids := range gone {
		r.with.Mover.Gone(ids, home)
	}
}

// release lets go who waits for a task that will not start here.
func (r *Room) release() {
	for id := range r.grants {
		if x := r.owner.runs[id]; x != nil && x.phase == proto.LeaseReceived {
			continue
		}
		delete(r.grants, id)
		if c := r.ready[id]; c != nil {
			close(c)
			delete(r.ready, id)
		}
		r.with.Runner.Stop(id, false)
	}
}

// send gives one message to the network, with what only the room has of it.
func (r *Room) send(s Send) {
	body := s.Body
	switch m := body.(type) {
	case *proto.Grant:
		env, err := r.with.Custody.Envelope(proto.TaskID(m.GetClaim().GetTask()), s.To)
		if err != nil {
			r.cfg.Logger.Warn("a task cannot be granted", "task", proto.TaskID(m.GetClaim().GetTask()).String(), "to", s.To.Short(), "err", err)
			return
		}
		m.Envelope = env
	case *proto.Handoff:
		if m.Lease == nil {
			break
		}
		env, err := r.with.Custody.Envelope(proto.TaskID(m.GetLease().GetTask()), s.To)
		if err != nil {
			r.cfg.Logger.Warn("a task cannot be handed over", "task", proto.TaskID(m.GetLease().GetTask()).String(), "to", s.To.Short(), "err", err)
			return
		}
		m.Task = &proto.Stored{Envelope: env}
		if h, err := proto.ParseHeader(env.GetHeader()); err == nil && h.Streamed() {
			r.carryHandoff(s.To, m)
			return
		}
	}
	if s.To == r.cfg.Self {
		r.self = append(r.self, selfSent{s.Type, body, s.Task})
		return
	}
	if s.Type == proto.TypeCancel { // a stream has that for tasks of a named node
		s.Type = proto.TypeWithdraw
	}
	r.with.Network.Post(s.To, s.Type, body)
}

// carryHandoff hands a task over once its body is at its new home. What is sent then is
// as things are now.
func (r *Room) carryHandoff(to proto.PeerID, m *proto.Handoff) {
	b, err := proto.Encode(nil, m)
	now := new(proto.Handoff)
	if err == nil {
		err = proto.Decode(b, now)
	}
	if err != nil {
		r.cfg.Logger.Warn("a task cannot be handed over", "to", to.Short(), "err", err)
		return
	}
	id := proto.TaskID(m.GetLease().GetTask())
	r.with.Bodies.Carry(to, proto.TypeHandoff, id, now.GetTask().GetEnvelope(), func() { r.with.Network.Post(to, proto.TypeHandoff, now) })
}

// whole is the outcome of a finished run under the lease that lease names.
func (r *Room) whole(id proto.TaskID, lease *proto.Outcome) *proto.Outcome {
	o := r.results[id].outcome
	if o == nil {
		return nil
	}
	o.BootId, o.LeaseToken, o.EpochBoot, o.EpochCounter = lease.BootId, lease.LeaseToken, lease.EpochBoot, lease.EpochCounter
	return o
}

// sendResults brings results home, which are signed together.
func (r *Room) sendResults(home proto.PeerID, all []Sealing) {
	sealed, err := r.with.Seals.Seal(home, all)
	if err != nil {
		r.cfg.Logger.Warn("results cannot be sealed for their home", "results", len(all), "first", all[0].Task.String(), "home", home.Short(), "err", err)
		return
	}
	for i, e := range sealed {
		r.with.Bodies.Carry(home, proto.TypeEnded, all[i].Task, e, func() { r.with.Network.Post(home, proto.TypeEnded, e) })
	}
}

// together makes one message of what this node says to grants of one home.
func together(sends []Send) []Send {
	first := map[proto.PeerID]*proto.Granted{}
	return slices.DeleteFunc(sends, func(s Send) bool {
		m, ok := s.Body.(*proto.Granted)
		if !ok {
			return false
		}
		g := first[s.To]
		if g == nil || len(g.Taken)+len(m.Taken) > proto.MaxGroup {
			first[s.To] = m
			return false
		}
		g.Taken = append(g.Taken, m.Taken...)
		return true
	})
}

// hearSelf takes what this node said to itself.
func (r *Room) hearSelf() {
	said := r.self
	r.self = nil
	for _, m := range said {
		if o, ok := m.body.(*proto.Outcome); ok {
			if o = r.whole(m.task, o); o != nil {
				r.result(r.cfg.Self, Unsealed{Task: m.task, Outcome: o})
			}
			continue
		}
		r.hear(r.cfg.Self, m.typ, m.body, r.codeOf(r.cfg.Self, m.body))
	}
}

// codeOf asks whether this node takes a grant.
func (r *Room) codeOf(from proto.PeerID, body proto.Body) proto.Code {
	if g, ok := body.(*proto.Grant); ok {
		return r.with.Runner.Check(from, g)
	}
	return 0
}
