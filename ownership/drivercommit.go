package ownership

import (
	"context"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

func (p *pendingOutput) reset() {
	*p = pendingOutput{
		writes: map[string][]byte{}, rulings: map[proto.PeerID][]*proto.Ruling{}, arrived: map[string][]byte{},
		done: map[proto.TaskID]*proto.Outcome{},
	}
}

// writesOnly reports whether the output consists of nothing but writes and timeline events.
func (p *pendingOutput) writesOnly() bool {
	o := p.out
	o.Writes, o.Events = nil, nil
	return o.Empty() && len(p.rulings)+len(p.with)+len(p.after) == 0 &&
		!slices.ContainsFunc(p.order, func(key string) bool { return key[0] == keyQueue })
}

// write adds a write. The last one for a key counts.
func (p *pendingOutput) write(w Write) {
	if _, ok := p.writes[w.Key]; !ok {
		p.order = append(p.order, w.Key)
	}
	p.writes[w.Key] = w.Val
	p.bytes += w.size()
}

// merge adds the output of an input to this step. If the store would reject one of its
// records, all of the output is dropped, the sender is reported, and merge returns false.
// See [Driver.rebuildHome].
func (d *Driver) merge(o Output) bool {
	if err := d.checkWrites(o.Writes); err != nil {
		d.homeInvalid = true
		d.cfg.Logger.Warn("a message is dropped: the store would reject a record of it", "from", d.sender, "err", err)
		d.pending.out.Events = append(d.pending.out.Events, Event{Kind: EventForged, Peer: d.sender, Cause: wire.LeaseUnstorable, Detail: proto.Clip(err.Error(), 128)})
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
		if d.records.putPolicy(p, s.Task); s.Early {
			d.starts.begin(s) // its record is written with the next commit, often with its end
		} else {
			p.out.Starts = append(p.out.Starts, s)
		}
	}
	p.out.Ends = append(p.out.Ends, o.Ends...)
	p.out.Sends = append(p.out.Sends, o.Sends...)
	p.out.Orphans = append(p.out.Orphans, o.Orphans...)
	p.out.Events = append(p.out.Events, o.Events...)
	p.out.Waits = append(p.out.Waits, o.Waits...)
	p.out.Stops = append(p.out.Stops, o.Stops...)
	p.out.Probes = append(p.out.Probes, o.Probes...)
	p.out.HandedOff = append(p.out.HandedOff, o.HandedOff...)
	p.out.BodyOffers = append(p.out.BodyOffers, o.BodyOffers...)
	return true
}

// checkWrites returns the error with which the store would reject a write. Records of the
// owner are exempt: their size does not depend on other nodes.
func (d *Driver) checkWrites(writes []Write) error {
	for _, w := range writes {
		if err := d.store.Fits(len(w.Val)); err != nil && w.Key[0] != keyOwner {
			return fmt.Errorf("the message asks for a record that cannot be stored: %w", err)
		}
		if len(w.Key) > store.MaxKey {
			return fmt.Errorf("the message asks for a record that cannot be stored: a key of %d bytes, limit %d", len(w.Key), store.MaxKey)
		}
	}
	return nil
}

// flush commits the pending output and then performs it. Output without visible effects may
// wait for the next commit, unless all is set: a node that dies in between has as good as
// never received the input. After an error the state machines are ahead of the disk: the
// driver must be opened again.
func (d *Driver) flush(ctx context.Context, all bool) error {
	d.prune()
	if !all && d.pending.writesOnly() && len(d.pending.order)+len(d.pending.out.Events) < maxStepInputs && d.pending.bytes < maxStepBytes {
		return nil
	}
	p := d.pending
	d.pending.reset()
	err := d.commitWithFailpoints(&p, func() error {
		defer clear(d.received)
		return d.commit(ctx, &p)
	}, func() { d.perform(&p) })
	for _, f := range p.after {
		f(err)
	}
	return err
}

// prune drops what the state machines no longer need: answered results, and policies of
// leases that are over. Only writes of this step can have caused that.
func (d *Driver) prune() {
	for _, key := range d.pending.order {
		if key[0] == keyOwner {
			id := proto.TaskID([]byte(key[1:]))
			d.records.prune(&d.pending, id, d.owner.runs[id])
		}
	}
}

// commit writes the pending output. Each end is written with the record of its task, and of
// the lane it blocks, in a batch of its own, concurrently with the rest: no node has
// learned of any of it, so a node that dies in between repeats what is missing. The custody
// of arrived tasks is written before the ends, since one of them may have ended already.
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
		o := d.received[e.Task]
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

// perform carries out what the committed output asks for.
func (d *Driver) perform(p *pendingOutput) {
	published := false
	for _, k := range p.order {
		if k[0] != keyQueue {
			continue
		}
		if !published {
			d.publish()
			published = true
		}
		if d.cfg.Queue != nil {
			d.cfg.Queue(k[1:])
		}
	}
	results := map[proto.PeerID][]SealRequest{}
	for _, s := range mergeGranted(p.out.Sends) {
		if lease, ok := s.Body.(*proto.Outcome); ok && s.To != d.cfg.Self {
			if o := d.records.outcome(s.Task, lease); o != nil && !d.parts.Network.Behind(s.To, len(o.GetBody())) {
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
		if g, ok := d.starts.grants[id]; ok {
			d.parts.Runner.Wait(g.from, g.msg)
		}
	}
	for _, s := range p.out.Starts {
		d.starts.begin(s)
	}
	for _, s := range p.out.Stops {
		d.cfg.Logger.Debug("a run is stopped", "task", s.Task.String(), "reason", s.Cause)
		d.parts.Runner.Stop(s.Task, s.Cancel, s.Hard)
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
			d.parts.Prober.Probe(x.grantedBy, d.records.probes[id].grant)
		}
	}
}

// reportHandedOff reports the tasks that their new homes have taken.
func (d *Driver) reportHandedOff(ids []proto.TaskID) {
	gone := map[proto.PeerID][]proto.TaskID{}
	for _, id := range ids {
		if entry := d.home.transit.byID[id]; entry != nil {
			gone[entry.home] = append(gone[entry.home], id)
		}
	}
	for home, ids := range gone {
		d.parts.Mover.HandedOff(ids, home)
	}
}

// releaseWaiters releases goroutines that wait for tasks that will not start here.
func (d *Driver) releaseWaiters() {
	for id := range d.starts.grants {
		if x := d.owner.runs[id]; x != nil && x.phase == proto.LeaseReceived {
			continue
		}
		delete(d.starts.grants, id)
		d.starts.release(id)
		d.parts.Runner.Stop(id, false, false)
	}
}

// send sends one message, with the content that only the driver has.
func (d *Driver) send(s Send) {
	body := s.Body
	switch m := body.(type) {
	case *proto.Grant:
		env, err := d.parts.Custody.Envelope(proto.TaskID(m.GetClaim().GetTask()), s.To)
		if err != nil {
			d.cfg.Logger.Warn("a task could not be granted", "task", proto.TaskID(m.GetClaim().GetTask()).String(), "to", s.To, "err", err)
			return
		}
		if d.behind(s.To, env) {
			d.home.DelayGrant(m, d.now())
			return
		}
		m.Envelope = env
		if h, err := proto.ParseHeader(env.GetHeader()); err == nil { // more is left if this clock was set back
			m.LeftMs = min(m.LeftMs, h.NotAfter-h.Created)
		}
	case *proto.Handoff:
		if m.Lease == nil {
			break
		}
		env, err := d.parts.Custody.Envelope(proto.TaskID(m.GetLease().GetTask()), s.To)
		if err != nil {
			d.cfg.Logger.Warn("a task could not be handed over", "task", proto.TaskID(m.GetLease().GetTask()).String(), "to", s.To, "err", err)
			return
		}
		if d.behind(s.To, env) {
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
	if s.Type == proto.TypeCancel { // on a stream that type is for tasks of a named node
		s.Type = proto.TypeWithdraw
	}
	d.parts.Network.Post(s.To, s.Type, body)
}

// behind reports whether a message with env would wait for long. It is sent again, and so are
// results.
func (d *Driver) behind(p proto.PeerID, env *proto.Envelope) bool {
	return p != d.cfg.Self && d.parts.Network.Behind(p, len(env.GetHeader())+len(env.GetBody()))
}

// sendHandoffWithBody sends a handoff once the body is at the new home. It sends a copy of
// the present message.
func (d *Driver) sendHandoffWithBody(to proto.PeerID, m *proto.Handoff) {
	b, err := proto.Encode(nil, m)
	now := new(proto.Handoff)
	if err == nil {
		err = proto.Decode(b, now)
	}
	if err != nil {
		d.cfg.Logger.Warn("a task could not be handed over", "to", to, "err", err)
		return
	}
	id := proto.TaskID(m.GetLease().GetTask())
	d.parts.Bodies.SendBodyFirst(to, proto.TypeHandoff, id, now.GetTask().GetEnvelope(), func() { d.parts.Network.Post(to, proto.TypeHandoff, now) })
}

// sendResults sends results, which are signed together.
func (d *Driver) sendResults(home proto.PeerID, all []SealRequest) {
	sealed, err := d.parts.Sealer.Seal(home, all)
	if err != nil {
		d.cfg.Logger.Warn("results could not be sealed for their home", "results", len(all), "first", all[0].Task.String(), "home", home, "err", err)
		return
	}
	for i, e := range sealed {
		d.parts.Bodies.SendBodyFirst(home, proto.TypeEnded, all[i].Task, e, func() { d.parts.Network.Post(home, proto.TypeEnded, e) })
	}
}

// mergeGranted combines the Granted messages for each home.
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

// handleSelfSent handles the messages of this node to itself.
func (d *Driver) handleSelfSent() {
	messages := d.selfSent
	d.selfSent = nil
	for _, m := range messages {
		if o, ok := m.body.(*proto.Outcome); ok {
			if o = d.records.outcome(m.task, o); o != nil {
				d.handleResult(d.cfg.Self, Unsealed{Task: m.task, Outcome: o})
			}
			continue
		}
		d.handleMessage(d.cfg.Self, m.typ, m.body, d.grantCode(d.cfg.Self, m.body))
	}
}

// grantCode checks whether this node accepts a grant.
func (d *Driver) grantCode(from proto.PeerID, body proto.Body) proto.Code {
	if g, ok := body.(*proto.Grant); ok {
		return d.parts.Runner.Check(from, g)
	}
	return 0
}
