package ownership

import (
	"context"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

func (p *pendingOutput) reset() {
	*p = pendingOutput{
		writes: map[string][]byte{}, rulings: map[proto.PeerID][]*proto.Ruling{}, arrived: map[string][]byte{},
		done: map[proto.TaskID]*proto.Outcome{},
	}
}

// writesOnly reports whether nothing but writes, and lines of the timeline, would come of
// t.
func (p *pendingOutput) writesOnly() bool {
	o := p.out
	o.Writes, o.Events = nil, nil
	return o.Empty() && len(p.rulings)+len(p.with)+len(p.after) == 0 &&
		!slices.ContainsFunc(p.order, func(key string) bool { return key[0] == keyQueue })
}

// write adds a write: the last one of a key counts.
func (p *pendingOutput) write(w Write) {
	if _, ok := p.writes[w.Key]; !ok {
		p.order = append(p.order, w.Key)
	}
	p.writes[w.Key] = w.Val
	p.bytes += w.size()
}

// writePieces writes what is too big for one record, and returns in how many.
func (p *pendingOutput) writePieces(prefix byte, id proto.TaskID, b []byte) (pieces int) {
	for piece := range slices.Chunk(b, maxPiece) {
		p.write(Write{Key: pieceKey(prefix, id, pieces), Val: piece})
		pieces++
	}
	return pieces
}

func (p *pendingOutput) dropPieces(prefix byte, id proto.TaskID, pieces int) {
	for n := range pieces {
		p.write(Write{Key: pieceKey(prefix, id, n)})
	}
}

func pieceKey(prefix byte, id proto.TaskID, piece int) string {
	return taskKey(prefix, id) + string([]byte{byte(piece)})
}

// merge takes what an input asks for into this turn. It reports whether it has: what asks
// for a record that the store does not take is dropped, with all that would come of it,
// and held against whoever sent it. See [Driver.mend].
func (d *Driver) merge(o Output) bool {
	if err := d.checkWrites(o.Writes); err != nil {
		d.homeInvalid = true
		d.cfg.Logger.Warn("what a member says is dropped: the store does not take it", "from", d.sender.Short(), "err", err)
		d.pending.out.Events = append(d.pending.out.Events, Event{Kind: EventForged, Peer: d.sender, Cause: proto.Clip(err.Error(), 128)})
		if d.cfg.OnMisbehavior != nil && !d.sender.IsZero() {
			d.cfg.OnMisbehavior(d.sender, err)
		}
		return false
	}
	p := &d.pending
	for _, w := range o.Writes {
		p.write(w)
	}
	for _, s := range o.Starts {
		d.writePolicy(s.Task)
	}
	p.out.Ends = append(p.out.Ends, o.Ends...)
	p.out.Sends = append(p.out.Sends, o.Sends...)
	p.out.Orphans = append(p.out.Orphans, o.Orphans...)
	p.out.Events = append(p.out.Events, o.Events...)
	p.out.Waits = append(p.out.Waits, o.Waits...)
	p.out.Starts = append(p.out.Starts, o.Starts...)
	p.out.Stops = append(p.out.Stops, o.Stops...)
	p.out.Probes = append(p.out.Probes, o.Probes...)
	p.out.HandedOff = append(p.out.HandedOff, o.HandedOff...)
	p.out.BodyOffers = append(p.out.BodyOffers, o.BodyOffers...)
	return true
}

// checkWrites says why the store would refuse one of the writes of the home. Those of the owner
// have nothing in them that is as large as others want it.
func (d *Driver) checkWrites(writes []Write) error {
	for _, w := range writes {
		if err := d.store.Fits(len(w.Val)); err != nil && w.Key[0] != keyOwner {
			return fmt.Errorf("it says what cannot be kept: %w", err)
		}
		if len(w.Key) > store.MaxKey {
			return fmt.Errorf("it says what cannot be kept: a key of %d bytes, limit %d", len(w.Key), store.MaxKey)
		}
	}
	return nil
}

// writePolicy writes what the node does about a task if it dies while that runs, with
// the start.
func (d *Driver) writePolicy(id proto.TaskID) {
	d.pending.write(Write{Key: taskKey(keyPolicy, id), Val: []byte{byte(d.policies[id])}})
}

// flush makes durable what the inputs of this turn asked for, then does it. A turn of
// which nobody would hear is written with the next one, or with all: a node that dies
// in between has as good as never received what it was about. After an error the
// machines know more than the disk: the room must be opened anew.
func (d *Driver) flush(ctx context.Context, all bool) error {
	d.prune()
	if !all && d.pending.writesOnly() && len(d.pending.order)+len(d.pending.out.Events) < maxStepInputs && d.pending.bytes < maxStepBytes {
		return nil
	}
	p := d.pending
	d.pending.reset()
	err := d.commitWithFailpoints(&p, func() error {
		defer clear(d.receivedResults)
		return d.commit(ctx, &p)
	}, func() { d.perform(&p) })
	for _, f := range p.after {
		f(err)
	}
	return err
}

// prune forgets what the machines have no use for any more: results that were
// answered, and policies of what is over. Only what this turn writes can have become
// so.
func (d *Driver) prune() {
	for _, key := range d.pending.order {
		if key[0] == keyOwner {
			d.pruneTask(proto.TaskID([]byte(key[1:])))
		}
	}
}

func (d *Driver) pruneTask(id proto.TaskID) {
	x := d.owner.runs[id]
	if _, ok := d.results[id]; ok && (x == nil || x.phase != proto.LeaseFinished) {
		d.dropResult(id)
	}
	if _, ok := d.policies[id]; !ok || x != nil && (x.mem.alive || x.phase == proto.LeaseStarted || x.phase == proto.LeaseReceived) {
		return
	}
	delete(d.policies, id)
	d.pending.write(Write{Key: taskKey(keyPolicy, id)})
	d.dropProbe(id)
}

// commit writes a turn. What ends is written with its cell, and its lane if that stands
// still, each in a batch of its own beside the rest: of nothing in this turn anybody
// has heard, so a node that dies in between finds itself before some of it, and does
// that again. The custody of tasks that came is written before any end: one of them may
// have ended already.
func (d *Driver) commit(ctx context.Context, p *pendingOutput) error {
	var steps []func() error
	mine := map[string]bool{}
	for _, e := range p.out.Ends {
		keys := []string{taskKey(keyLease, e.Task)}
		if e.block != "" {
			keys = append(keys, e.block)
		}
		for _, key := range keys {
			mine[key] = true
		}
		o := d.receivedResults[e.Task]
		steps = append(steps, func() error {
			return d.parts.Custody.End(ctx, e, o, func(b *store.Batch) { p.into(b, keys...) })
		})
	}
	var rest store.Batch
	for _, key := range p.order {
		if !mine[key] {
			p.into(&rest, key)
		} else if val, ok := p.arrived[key]; ok {
			rest.Put(store.Leases, []byte(key), val)
		}
	}
	for _, with := range p.with {
		with(&rest)
	}
	if rest.Len() > 0 {
		if p.writesQueues() {
			d.store.RaiseSchema(&rest) // an older version would run such a task without its lease
		}
		apply := func() error { return d.store.Apply(context.WithoutCancel(ctx), &rest) }
		if len(p.with) > 0 {
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
	return runAll(steps)
}

// into adds the writes of these keys to b.
func (p *pendingOutput) into(b *store.Batch, keys ...string) {
	for _, k := range keys {
		if val := p.writes[k]; val == nil {
			b.Delete(store.Leases, []byte(k))
		} else {
			b.Put(store.Leases, []byte(k), val)
		}
	}
}

// writesQueues reports whether the turn writes anything of shared queues: the number of
// this start is written by every node.
func (p *pendingOutput) writesQueues() bool {
	return slices.ContainsFunc(p.order, func(k string) bool { return k[0] != keyHomeBoot && p.writes[k] != nil })
}

// perform does what is durable.
func (d *Driver) perform(p *pendingOutput) {
	for _, k := range p.order {
		if k[0] == keyQueue {
			d.publish()
			if d.cfg.Queue != nil {
				d.cfg.Queue(k[1:])
			}
		}
	}
	results := map[proto.PeerID][]SealRequest{}
	for _, s := range mergeGranted(p.out.Sends) {
		if lease, ok := s.Body.(*proto.Outcome); ok && s.To != d.cfg.Self {
			if o := d.fullOutcome(s.Task, lease); o != nil {
				results[s.To] = append(results[s.To], SealRequest{s.Task, o})
			}
			continue
		}
		d.send(s)
	}
	for home, all := range results {
		for some := range slices.Chunk(all, proto.MaxGroup) {
			d.sendResults(home, some)
		}
	}
	for p, all := range p.rulings {
		for some := range slices.Chunk(all, proto.MaxGroup) {
			d.send(Send{To: p, Type: proto.TypeCommitted, Body: &proto.Committed{Rulings: some}})
		}
	}
	for _, id := range p.out.Waits {
		if g, ok := d.grants[id]; ok {
			d.parts.Runner.Wait(g.from, g.msg)
		}
	}
	for _, s := range p.out.Starts {
		if c := d.startWaiters[s.Task]; c != nil {
			d.running[s.Task] = true
			c <- s
			delete(d.startWaiters, s.Task)
			delete(d.grants, s.Task)
		}
	}
	for _, s := range p.out.Stops {
		d.parts.Runner.Stop(s.Task, s.Cancel)
	}
	d.releaseWaiters()
	d.reportHandedOff(p.out.HandedOff)
	for _, l := range p.out.BodyOffers {
		d.parts.Bodies.Offer(l.Task, l.Owner)
	}
	for id, o := range p.done {
		d.parts.Bodies.Forget(id, o)
	}
	if len(p.out.Events) > 0 && d.cfg.Events != nil {
		d.cfg.Events(p.out.Events)
	}
	if len(p.out.Orphans) > 0 && d.cfg.Orphan != nil {
		d.cfg.Orphan(p.out.Orphans)
	}
	for _, id := range p.out.Probes {
		if x := d.owner.runs[id]; x != nil {
			d.parts.Prober.Probe(x.grantedBy, d.probes[id].grant)
		}
	}
}

// reportHandedOff tells of the tasks that their new homes have.
func (d *Driver) reportHandedOff(ids []proto.TaskID) {
	gone := map[proto.PeerID][]proto.TaskID{}
	for _, id := range ids {
		if entry := d.home.moved[id]; entry != nil {
			gone[entry.home] = append(gone[entry.home], id)
		}
	}
	for home, ids := range gone {
		d.parts.Mover.HandedOff(ids, home)
	}
}

// releaseWaiters lets go who waits for a task that will not start here.
func (d *Driver) releaseWaiters() {
	for id := range d.grants {
		if x := d.owner.runs[id]; x != nil && x.phase == proto.LeaseReceived {
			continue
		}
		delete(d.grants, id)
		if c := d.startWaiters[id]; c != nil {
			close(c)
			delete(d.startWaiters, id)
		}
		d.parts.Runner.Stop(id, false)
	}
}

// send gives one message to the network, with what only the room has of it.
func (d *Driver) send(s Send) {
	body := s.Body
	switch m := body.(type) {
	case *proto.Grant:
		env, err := d.parts.Custody.Envelope(proto.TaskID(m.GetClaim().GetTask()), s.To)
		if err != nil {
			d.cfg.Logger.Warn("a task cannot be granted", "task", proto.TaskID(m.GetClaim().GetTask()).String(), "to", s.To.Short(), "err", err)
			return
		}
		m.Envelope = env
	case *proto.Handoff:
		if m.Lease == nil {
			break
		}
		env, err := d.parts.Custody.Envelope(proto.TaskID(m.GetLease().GetTask()), s.To)
		if err != nil {
			d.cfg.Logger.Warn("a task cannot be handed over", "task", proto.TaskID(m.GetLease().GetTask()).String(), "to", s.To.Short(), "err", err)
			return
		}
		m.Task = &proto.Stored{Envelope: env}
		if h, err := proto.ParseHeader(env.GetHeader()); err == nil && h.Streamed() {
			d.sendHandoffWithBody(s.To, m)
			return
		}
	}
	if s.To == d.cfg.Self {
		d.selfSent = append(d.selfSent, selfMessage{s.Type, body, s.Task})
		return
	}
	if s.Type == proto.TypeCancel { // a stream has that for tasks of a named node
		s.Type = proto.TypeWithdraw
	}
	d.parts.Network.Post(s.To, s.Type, body)
}

// sendHandoffWithBody hands a task over once its body is at its new home. What is sent then is
// as things are now.
func (d *Driver) sendHandoffWithBody(to proto.PeerID, m *proto.Handoff) {
	b, err := proto.Encode(nil, m)
	now := new(proto.Handoff)
	if err == nil {
		err = proto.Decode(b, now)
	}
	if err != nil {
		d.cfg.Logger.Warn("a task cannot be handed over", "to", to.Short(), "err", err)
		return
	}
	id := proto.TaskID(m.GetLease().GetTask())
	d.parts.Bodies.SendBodyFirst(to, proto.TypeHandoff, id, now.GetTask().GetEnvelope(), func() { d.parts.Network.Post(to, proto.TypeHandoff, now) })
}

// fullOutcome is the outcome of a finished run under the lease that lease names.
func (d *Driver) fullOutcome(id proto.TaskID, lease *proto.Outcome) *proto.Outcome {
	o := d.results[id].outcome
	if o == nil {
		return nil
	}
	o.BootId, o.LeaseToken, o.EpochBoot, o.EpochCounter = lease.BootId, lease.LeaseToken, lease.EpochBoot, lease.EpochCounter
	return o
}

// sendResults brings results home, which are signed together.
func (d *Driver) sendResults(home proto.PeerID, all []SealRequest) {
	sealed, err := d.parts.Sealer.Seal(home, all)
	if err != nil {
		d.cfg.Logger.Warn("results cannot be sealed for their home", "results", len(all), "first", all[0].Task.String(), "home", home.Short(), "err", err)
		return
	}
	for i, e := range sealed {
		d.parts.Bodies.SendBodyFirst(home, proto.TypeEnded, all[i].Task, e, func() { d.parts.Network.Post(home, proto.TypeEnded, e) })
	}
}

// mergeGranted makes one message of what this node says to grants of one home.
func mergeGranted(sends []Send) []Send {
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

// handleSelfSent takes what this node said to itself.
func (d *Driver) handleSelfSent() {
	said := d.selfSent
	d.selfSent = nil
	for _, m := range said {
		if o, ok := m.body.(*proto.Outcome); ok {
			if o = d.fullOutcome(m.task, o); o != nil {
				d.handleResult(d.cfg.Self, Unsealed{Task: m.task, Outcome: o})
			}
			continue
		}
		d.handleMessage(d.cfg.Self, m.typ, m.body, d.grantCode(d.cfg.Self, m.body))
	}
}

// grantCode asks whether this node takes a grant.
func (d *Driver) grantCode(from proto.PeerID, body proto.Body) proto.Code {
	if g, ok := body.(*proto.Grant); ok {
		return d.parts.Runner.Check(from, g)
	}
	return 0
}
