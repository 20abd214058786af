package mail

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
)

// MaxSpools is how many boxes on other nodes there may be mail for.
const MaxSpools = box.MaxBoxes - 1024

// An Outgoing is a mail for a box on another node.
type Outgoing struct {
	Box        string // its name at its home, at most [proto.MaxTarget] bytes
	Home       proto.PeerID
	Generation uint64  // of that home
	Letter     []byte  // as [proto.AppendLetter] encodes it
	Ends       *Bounce // as in an [Item]
	cause      uint32  // of other mail: as in a [box.Mail]
}

// Forward is [Broker.Send] for boxes on other nodes: it puts mails into the spools of their
// boxes. They are sent by the [Lane] of the home, in order. A zero home is not known yet: see
// [Broker.SetHome].
func (b *Broker) Forward(ctx context.Context, mails []Outgoing, relaxed bool) ([]Sent, error) {
	f, err := b.forwardable(ctx, mails, relaxed)
	if f == nil {
		return nil, err
	}
	if err := b.do(func(box.Now) { b.forward(f) }); err != nil {
		return nil, err
	}
	return f.Wait(ctx)
}

// A forwarding is one call of Forward.
type forwarding struct {
	*Sending
	boxes []string
	facts []chain.Mail
}

// forwardable checks the mails of a call and makes the spools that they need.
func (b *Broker) forwardable(ctx context.Context, mails []Outgoing, relaxed bool) (*forwarding, error) {
	s, err := newSending(b, mails, relaxed, nil, func(o Outgoing) []byte { return o.Letter })
	if s == nil {
		return nil, err
	}
	f := &forwarding{s, make([]string, len(mails)), make([]chain.Mail, len(mails))}
	at := b.cfg.Clock.Now().UnixMilli()
	for i, o := range mails {
		l, err := proto.ParseLetter(o.Letter)
		if err != nil {
			s.sent[i] = Sent{Code: proto.CodeBadForm, Detail: err.Error(), ForGood: true}
			continue
		}
		if known, ok := (*b.boxes.Load())[box.SpoolPrefix+o.Box]; !ok || known.movesTo(o.Home, o.Generation) {
			err = b.setHomeFor(ctx, o)
		}
		if refused := (*RefusedError)(nil); errors.As(err, &refused) {
			s.sent[i] = Sent{Code: refused.Code, Detail: refused.Detail, ID: l.ID}
			continue
		} else if errors.Is(err, box.ErrBadRecord) {
			s.sent[i] = Sent{Code: proto.CodeBadForm, Detail: err.Error(), ForGood: true, ID: l.ID}
			continue
		} else if err != nil {
			return nil, err
		}
		s.newWork = s.newWork || o.Ends == nil
		f.boxes[i] = o.Box
		f.facts[i] = chain.Mail{Class: l.Class, Key: string(l.Key), NotAfter: l.NotAfter, Size: len(o.Letter)}
		s.mails[i] = box.Mail{At: at, Cause: o.causedBy(), Letter: o.Letter}
	}
	return f, nil
}

// forward numbers the mails of a call and queues their records.
func (b *Broker) forward(f *forwarding) {
	for i := range f.mails {
		t := b.spools.targets[f.boxes[i]]
		switch {
		case f.boxes[i] == "":
			f.answered()
			continue
		case t == nil:
			f.answer(i, box.Result{Code: proto.CodeBusy, Detail: "its spool was removed meanwhile"}, nil)
			continue
		case !f.newWork && b.waitingIn(t) == 0 && !b.mayTell(f.mails[i].Cause):
			f.answer(i, box.Result{Code: proto.CodeFull, Detail: tooManyEnds}, nil)
			continue
		}
		m := &f.mails[i]
		b.number(t, m, f.facts[i])
		f.encode(i)
		b.queue(f.recs[i], f.newWork, f.relaxed, func(r box.Result, err error) {
			b.stored(t, m.Chain, m.Number, r, err)
			f.answer(i, r, err)
		})
	}
}

// number puts a mail into a spool, with the next number of its chain.
func (b *Broker) number(t *target, m *box.Mail, facts chain.Mail) {
	if b.waitingIn(t) == 0 {
		t.cause = m.Cause
	}
	m.Box = t.id
	m.Chain, m.Number = b.spools.origin.Add(t.box, facts)
}

// causedBy returns the index of the node whose mail has ended, 0 if that is this one, or t is nil.
func (t *Bounce) causedBy() uint32 {
	if t == nil {
		return 0
	}
	return t.cause
}

// causedBy returns the index of the node whose mail caused this one, 0 if that is this one.
func (o *Outgoing) causedBy() uint32 { return cmp.Or(o.cause, o.Ends.causedBy()) }

// stored notes what became of a mail that was numbered. If that is unknown, what follows in
// its chain waits for the next start.
func (b *Broker) stored(t *target, class proto.Class, n proto.Seq, r box.Result, err error) {
	r, err = outcome(r, err)
	switch {
	case err != nil:
		return
	case r.Code == proto.CodeOK && !r.Duplicate:
		b.spools.origin.Stored(t.box, class, n, r.Seq)
	default:
		b.spools.origin.End(t.box, class, n)
	}
	b.offer(t, class)
}

// movesTo reports whether the home of a spool is news.
func (k *knownBox) movesTo(home proto.PeerID, generation uint64) bool {
	return generation > k.generation || generation == k.generation && k.home.IsZero() && !home.IsZero()
}

// differs reports whether a spool is for another home.
func (k *knownBox) differs(home proto.PeerID, generation uint64) bool {
	return k.home != home || k.generation != generation
}

// SetHome notes the home of a box on another node: what waits for the box goes there, with the
// numbers that it has. A generation that is not above the one that is known changes nothing: see
// [Broker.Rehome]. Errors: a [*RefusedError], one wrapping [box.ErrBadRecord] for a bad name.
func (b *Broker) SetHome(ctx context.Context, name string, home proto.PeerID, generation uint64) error {
	return b.setHomeFor(ctx, Outgoing{Box: name, Home: home, Generation: generation})
}

// setHomeFor is SetHome for a mail.
func (b *Broker) setHomeFor(ctx context.Context, o Outgoing) error {
	return b.setHome(ctx, o, func(t *target) bool { return t == nil || t.movesTo(o.Home, o.Generation) })
}

// Rehome is SetHome for a box with a spool, by what the mesh knows: the name may have been made
// twice, and the home that counts may have any generation.
func (b *Broker) Rehome(ctx context.Context, name string, home proto.PeerID, generation uint64) error {
	return b.setHome(ctx, Outgoing{Box: name, Home: home, Generation: generation}, func(t *target) bool { return t != nil && t.differs(home, generation) })
}

// setHome is SetHome for a mail if news says so of the spool, nil if there is none.
func (b *Broker) setHome(ctx context.Context, o Outgoing, news func(*target) bool) error {
	settings := box.BoxSettings{Name: box.SpoolPrefix + o.Box, Kind: box.Spool, Home: o.Home, Generation: o.Generation}
	if err := settings.Check(); err != nil {
		return fmt.Errorf("mail: set the home of a box: %w", err)
	}
	_, err := b.change(ctx, func(box.Now) error {
		t := b.spools.targets[o.Box]
		if !news(t) {
			return nil
		}
		id := b.state.NewBox()
		if t != nil {
			id = t.id
		} else if o.Ends != nil && !b.mayTell(o.Ends.cause) {
			return &RefusedError{proto.CodeFull, tooManyEnds}
		} else if err := b.makeSpace(); err != nil {
			return err
		}
		b.out.Records = append(b.out.Records, box.EncodeBox(id, &settings))
		return nil
	})
	return err
}

// makeSpace removes an empty spool if there are too many, one with receipts only if each has some. A
// dedupe key that was used in it is known at the home.
func (b *Broker) makeSpace() error {
	if len(b.spools.targets) < MaxSpools {
		return nil
	}
	var empty *target
	for _, t := range b.spools.targets {
		if b.waitingIn(t) == 0 && (empty == nil || b.state.Receipts(empty.id) > 0) {
			empty = t
		}
	}
	if empty != nil {
		b.out.Records = append(b.out.Records, box.EncodeRemoveBox(empty.id))
		return nil
	}
	return &RefusedError{proto.CodeFull, fmt.Sprintf("mail waits for %d boxes on other nodes", MaxSpools)}
}

const tooManyEnds = "mail waits for too many boxes on other nodes to tell one more of an end"

// mayTell reports whether what tells of an end that a node caused may wait for one more box. Other nodes
// name those: they leave a tenth of the spools to other mail, and of the rest what each of them causes
// has at most nine times what is free.
func (b *Broker) mayTell(cause uint32) bool {
	const limit = MaxSpools - MaxSpools/10
	held, used := 0, 0
	for _, t := range b.spools.targets {
		if b.waitingIn(t) == 0 {
			continue
		}
		if used++; t.cause == cause {
			held++
		}
	}
	return used < limit && fair.Within(held, used, limit)
}

// waitingIn returns how many mails a spool has, or will have when they are written.
func (b *Broker) waitingIn(t *target) (n int) {
	for class := proto.Critical; class <= proto.Low; class++ {
		n += b.spools.origin.Len(t.box, class)
	}
	return n
}
