package box

import (
	"maps"
	"slices"

	"github.com/balefire/balefire/proto"
)

// applyBox makes, changes or removes a box, or sets the limits of the ledger.
func (s *State) applyBox(h head, d decoder, out *Output) error {
	r := Result{Box: h.box}
	switch op := d.u8(); op {
	case boxSet, boxMake:
		given := uint64(0)
		if op == boxMake {
			given = d.u64()
		}
		settings := d.boxSettings()
		if !d.done() || h.sub != 0 || h.box == 0 {
			return bad(TypeBox)
		}
		if r = s.setBox(h.box, settings, out); r.Code == proto.CodeOK && !r.Duplicate {
			s.boxes[h.box].given = given
		}
	case boxRemove:
		if !d.done() || h.sub != 0 || h.box == 0 {
			return bad(TypeBox)
		}
		if s.boxes[h.box] == nil {
			r = refuse(proto.CodeNoHandler, "no such box")
			break
		}
		if b := s.boxes[h.box]; b.settings.Kind == Spool && b.mails.count > 0 {
			r = refuse(proto.CodeBusy, "the home may have what is in the spool")
			break
		} else if b.still() {
			r = refuse(proto.CodeBusy, moving)
			break
		}
		s.removeBox(s.boxes[h.box], out)
	case boxLimits:
		l := d.limits()
		if !d.done() || h.sub != 0 || h.box != 0 {
			return bad(TypeBox)
		}
		s.limits = l
		s.trimAll()
	default:
		return bad(TypeBox)
	}
	out.Results = append(out.Results, r)
	return nil
}

func (s *State) setBox(id BoxID, settings BoxSettings, out *Output) Result {
	if b := s.boxes[id]; b != nil {
		if b.settings.Name != settings.Name || b.settings.Kind != settings.Kind || b.settings.PerPeer != settings.PerPeer {
			return refuse(proto.CodeBusy, "name, kind and lanes of a box never change")
		}
		if b.still() && settings.Handover == b.settings.Handover {
			return refuse(proto.CodeBusy, moving)
		}
		was, all := b.still(), !b.settings.Interest
		b.settings = settings
		s.trim(b)
		if all {
			s.endRead(b, out) // what it kept for its age
		}
		if b.still() && !was {
			b.stand()
		}
		b.wake(out)
		return Result{Box: id, Duplicate: true}
	}
	switch {
	case s.names[settings.Name] != 0:
		return refuse(proto.CodeDuplicate, "another box has the name")
	case id != s.nextBox:
		return refuse(proto.CodeBusy, "another box has the number")
	case len(s.boxes) >= MaxBoxes:
		return refuse(proto.CodeFull, "too many boxes")
	}
	s.nextBox++
	b := &box{id: id, settings: settings, next: 1, nextSub: 1, starts: []started{{s.boot, 1}}}
	s.boxes[id], s.names[settings.Name] = b, id
	if settings.Kind == Mailbox {
		b.subs = []*sub{newSub(b, 0, SubSettings{})}
	}
	return Result{Box: id}
}

// removeBox removes a box. What waits in it ends as CANCELLED.
func (s *State) removeBox(b *box, out *Output) {
	for seq, m := b.mails.next(0); m != nil; seq, m = b.mails.next(seq) {
		s.remove(b, seq, ending{state: Cancelled, cause: CauseRemoved}, out)
	}
	s.kept -= b.kept.bytes
	s.receipts -= len(b.receipts)
	s.tellLast(b, out)
	for _, u := range b.subs {
		s.removeSub(u, out)
	}
	delete(s.boxes, b.id)
	delete(s.names, b.settings.Name)
	if b.settings.Once {
		s.chains.Drop(b.settings.Name)
	}
}

// removeSub ends the sessions of a subscription and forgets its dead letters.
func (s *State) removeSub(u *sub, out *Output) {
	for _, x := range u.sessions {
		x.sub = nil
		out.Lost = append(out.Lost, x)
	}
	u.sessions = nil
	dead := u.dead
	u.dead = nil
	for _, d := range dead {
		s.bytes -= d.Size
		s.details -= d.detail()
		u.box.release(d.Seq, out)
	}
	u.queue.reset()
}

// applySub makes, changes or removes a subscription, or changes its dead letters.
func (s *State) applySub(h head, d decoder, out *Output) error {
	b, u := s.boxes[h.box], s.find(h.box, h.sub)
	r := Result{Box: h.box}
	op := d.u8()
	var settings SubSettings
	var from Start
	var origin uint32
	var key []byte
	var seqs []uint64
	switch op {
	case subSet:
		settings, from = d.subSettings(), d.start()
	case subSeek:
		from = d.start()
	case subUnblock:
		origin, key = d.u32(), d.text(proto.MaxKey)
	case subRedriven, subArchived:
		seqs = d.seqs(nil)
	default:
		d.check(op == subRemove)
	}
	if !d.done() {
		return bad(TypeSub)
	}
	switch {
	case b == nil, u == nil && op != subSet:
		r = refuse(proto.CodeNoHandler, "no such box or subscription")
	case b.still():
		r = refuse(proto.CodeBusy, moving)
	case b.settings.Kind != Topic && (op == subRemove || op == subSeek):
		r = refuse(proto.CodeBadForm, "a mailbox is its only subscription")
	case op == subSet:
		r = s.setSub(b, u, h.sub, settings, from, out)
	case op == subRemove:
		s.dropSub(b, u, out)
	case op == subSeek:
		s.seek(u, from, out)
	case op == subUnblock:
		u.unblock(b.laneHash(origin, key), out)
	default:
		s.changeDead(u, op, seqs, out)
	}
	out.Results = append(out.Results, r)
	return nil
}

func (s *State) setSub(b *box, u *sub, id SubID, settings SubSettings, from Start, out *Output) Result {
	if u != nil {
		if u.settings.Name != settings.Name || u.settings.Filter != settings.Filter {
			return refuse(proto.CodeBusy, "name and filter of a subscription never change")
		}
		u.settings = settings
		u.wake(out)
		return Result{Box: b.id, Duplicate: true}
	}
	switch {
	case b.settings.Kind != Topic || settings.Name == "":
		return refuse(proto.CodeBadForm, "a mailbox is its only subscription; that of a topic has a name")
	case slices.ContainsFunc(b.subs, func(u *sub) bool { return u.settings.Name == settings.Name }):
		return refuse(proto.CodeDuplicate, "another subscription has the name")
	case id != b.nextSub:
		return refuse(proto.CodeBusy, "another subscription has the number")
	case len(b.subs) >= MaxSubs || b.nextSub == 1<<16-1:
		return refuse(proto.CodeFull, "too many subscriptions")
	}
	b.nextSub++
	u = newSub(b, id, settings)
	b.subs = append(b.subs, u)
	u.startAt(from)
	return Result{Box: b.id}
}

// dropSub removes a subscription of a topic. Mail that waited for it alone ends.
func (s *State) dropSub(b *box, u *sub, out *Output) {
	s.removeSub(u, out)
	b.subs = slices.DeleteFunc(b.subs, func(x *sub) bool { return x == u })
	s.endRead(b, out)
}

// endRead ends what no subscription of an interest topic waits for.
func (s *State) endRead(b *box, out *Output) {
	if b.settings.Kind != Topic || !b.settings.Interest {
		return
	}
	for seq, m := b.mails.next(0); m != nil; seq, m = b.mails.next(seq + 1) {
		if b.unread(seq) == 0 {
			s.remove(b, seq, ending{state: Done}, out)
		}
	}
}

// seek moves a subscription. What it was given before is stale.
func (s *State) seek(u *sub, to Start, out *Output) {
	for _, d := range u.deliveries {
		d.release()
	}
	u.queue.reset()
	clear(u.retries)
	clear(u.blocked)
	u.ended, u.known = nil, 0
	u.startAt(to)
	s.endRead(u.box, out)
	u.wake(out)
}

// startAt sets what a subscription has read.
func (u *sub) startAt(from Start) {
	b := u.box
	u.floor, u.done = b.next, nil
	switch from.At {
	case StartFirst:
		u.floor = 0
	case StartSeq:
		u.floor = min(from.Seq, b.next)
	case StartTime:
		for seq, m := b.mails.next(0); m != nil; seq, m = b.mails.next(seq + 1) {
			if int64(m.accepted) >= from.Ms/1000 {
				u.floor = seq
				break
			}
		}
	case StartLast:
		newest := map[uint32]uint64{}
		for seq, m := b.mails.next(0); m != nil; seq, m = b.mails.next(seq + 1) {
			newest[m.subject] = seq
		}
		u.floor = 0
		before := uint64(0)
		for _, seq := range slices.Sorted(maps.Values(newest)) {
			u.done.add(before, seq)
			before = seq + 1
		}
		u.done.add(before, b.next)
	}
	u.settle()
}

// unblock lets a lane go on.
func (u *sub) unblock(lane [16]byte, out *Output) {
	delete(u.blocked, lane)
	if l := u.lanes[u.box.keys.ids[lane]]; l != nil {
		u.offer(l.seqs[0])
	}
	u.wake(out)
}

// changeDead notes that dead letters were sent again or archived.
func (s *State) changeDead(u *sub, op byte, seqs []uint64, out *Output) {
	gone := map[uint64]bool{}
	for _, seq := range seqs {
		i, ok := u.findDead(seq)
		switch {
		case !ok:
		case op == subRedriven:
			u.dead[i].Redriven = true
		default:
			gone[seq] = true
			s.bytes -= u.dead[i].Size
			s.details -= u.dead[i].detail()
			delete(u.archiving, seq)
		}
	}
	if len(gone) > 0 {
		u.dead = slices.DeleteFunc(u.dead, func(d DeadLetter) bool { return gone[d.Seq] })
	}
	for _, seq := range seqs {
		if gone[seq] {
			u.box.release(seq, out)
		}
	}
}
