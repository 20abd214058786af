package mail

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// A BoxHome is where a box has its home, as its spool or the box itself says.
type BoxHome struct {
	Spool      bool         // of mail for it; otherwise the box is here, or a copy of it
	Home       proto.PeerID // of a spool
	Generation uint64
	Handover   box.Handover // how far it is on its way
}

// BoxHomes returns the boxes, copies and spools of this node, by the names of the boxes.
func (b *Broker) BoxHomes() iter.Seq2[string, BoxHome] {
	boxes := *b.boxes.Load()
	return func(yield func(string, BoxHome) bool) {
		for _, name := range slices.Sorted(maps.Keys(boxes)) {
			k := boxes[name]
			if k.spool {
				name = strings.TrimPrefix(name, box.SpoolPrefix)
			}
			if !yield(strings.TrimPrefix(name, box.CopyPrefix), BoxHome{k.spool, k.home, k.generation, k.handover}) {
				return
			}
		}
	}
}

// A Moving is the mail of a box that goes to the new home of that.
type Moving struct {
	Box        string
	Home       proto.PeerID
	Generation uint64

	// Change changes a letter before it is sent on, given the node that it came from, zero for
	// this one.
	Change func(from proto.PeerID, l *proto.Letter)

	Moved int       // mails that were put into the spool
	id    box.BoxID // of the box that these are of: its name may have got another one
	from  uint64    // sequence of the next one
}

// MoveOut puts the next mails of a box into the spool for its new home, in order, each with the
// record that ends it here: both are on disk or neither is. It reports whether there may be more.
// Mail that the spool refuses for good, or that cannot be read, stays. The error is a
// [*RefusedError] if one is refused for now, or wraps [box.ErrNotFound].
func (b *Broker) MoveOut(ctx context.Context, m *Moving) (more bool, err error) {
	id, kept, err := b.movable(ctx, m)
	if len(kept) == 0 {
		return false, err
	}
	out, seqs, err := b.movingLetters(ctx, m, kept)
	if err != nil {
		return false, err
	}
	f, err := b.forwardable(ctx, out, false)
	switch {
	case err != nil:
		return false, err
	case f != nil:
		if err := b.do(func(box.Now) { b.moveOut(f, m.Box, id, seqs) }); err != nil {
			return false, err
		}
		sent, err := f.Wait(ctx)
		if err != nil {
			return false, err
		}
		for i, s := range sent {
			switch {
			case s.Code == proto.CodeOK:
				m.Moved++
			case !s.ForGood && s.Code != proto.CodeStale:
				m.from = seqs[i]
				return false, &RefusedError{s.Code, s.Detail}
			}
		}
	}
	m.from = kept[len(kept)-1].Seq + 1
	return true, nil
}

// movable returns the next mails of a box.
func (b *Broker) movable(ctx context.Context, m *Moving) (id box.BoxID, kept []box.Kept, err error) {
	found := false
	err = b.call(ctx, func(box.Now) {
		if id, found = b.state.Find(m.Box); id != m.id {
			m.id, m.from, m.Moved = id, 0, 0
		}
		size := int64(0)
		for i := range b.state.Mails(id, 0, m.from) {
			if size += i.Size; len(kept) > 0 && (len(kept) == MaxSend || size > MaxSendBytes/2) {
				return
			}
			kept = append(kept, box.Kept{Box: id, Seq: i.Seq, Place: i.Place, Length: i.Length, Size: i.Size})
		}
	})
	if err == nil && !found {
		err = box.ErrNotFound
	}
	return id, kept, err
}

// movingLetters reads mails, and returns what is sent on of them, with their sequences.
func (b *Broker) movingLetters(ctx context.Context, m *Moving, kept []box.Kept) (out []Outgoing, seqs []uint64, err error) {
	for _, k := range kept {
		mail, from, err := b.MailOf(ctx, k)
		if IsDamage(err) {
			b.cfg.Logger.Warn("a mail cannot be sent on to the new home of its box", "box", m.Box, "seq", k.Seq, "why", err)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		l, err := proto.ParseLetter(mail.Letter)
		if err != nil {
			return nil, nil, err // a bug: the box took it
		}
		if m.Change(from, &l); !from.IsZero() {
			l.Flags &^= proto.LetterReceipt // its node has the one of this node
		}
		letter, err := proto.AppendLetter(nil, &l)
		if err != nil {
			letter = mail.Letter // it has no room for the change
		}
		out, seqs = append(out, Outgoing{Box: m.Box, Home: m.Home, Generation: m.Generation, Letter: letter, cause: b.causeOf(&mail)}), append(seqs, k.Seq)
	}
	return out, seqs, nil
}

// moveOut numbers mails of a box for its spool, and queues their records: those of all or, so that
// they keep their order, if there is no room for all of none.
func (b *Broker) moveOut(f *forwarding, name string, id box.BoxID, seqs []uint64) {
	t, size := b.spools.targets[name], 0
	for _, x := range f.facts {
		size += x.Size
	}
	room := box.Result{Code: proto.CodeBusy, Detail: "its spool was removed meanwhile"}
	if t != nil {
		room = b.state.Room(&box.Mail{Box: t.id, Letter: make([]byte, size)})
	}
	for i, m := range f.mails {
		switch {
		case f.boxes[i] == "":
			f.answered()
			continue
		case room.Code != proto.CodeOK:
			f.answer(i, room, nil)
			continue
		case !b.state.ForwardAll(id, seqs[i]):
			f.answer(i, box.Result{Code: proto.CodeStale, Detail: "it has ended"}, nil)
			continue
		}
		b.number(t, &m, f.facts[i])
		rec := box.EncodeForward(id, 0, seqs[i], box.AppendMail(nil, &m))
		b.queue(rec, false, false, func(r box.Result, err error) {
			if b.stored(t, m.Chain, m.Number, r, err); err != nil || r.Code != proto.CodeOK {
				b.state.UnforwardAll(id, seqs[i], &b.out)
			}
			f.answer(i, r, err)
		})
	}
}
