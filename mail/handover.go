package mail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// A box is handed over as a copy of its state: see package box. [Broker.Stand] lets it be still
// here, [Broker.Copy] reads it in pieces, and [Broker.BeginCopy], [Broker.AddToCopy] and
// [Broker.EndCopy] make the copy at the new home, which [Broker.Serve] then serves. When the old
// home has heard of that, [Broker.Leave] removes the box there. Until then, [Broker.SetHandover]
// with none lets it be served again.

const (
	maxPiece     = 256 << 10       // bytes of the records of a piece; a larger one is alone
	maxPieceLen  = proto.MaxBundle // records of a piece
	leaseWait    = time.Second     // for readers to settle what they have, before a box is still
	leaseLook    = 20 * time.Millisecond
	lookingMails = 128 << 10 // bytes of letters that are read for a piece
)

// A Piece is a part of a box on its way to its next home.
type Piece struct {
	Records [][]byte       // those that [box.ForCopy] reads
	Origins []proto.PeerID // of the mails: a record names the place of its own, from 1
	Bodies  [][]byte       // letters whose bodies are not in them
}

// Letters returns the letters of the mails of a piece whose bodies are not in them. The error is
// one of the packages box and proto.
func (p *Piece) Letters() iter.Seq2[*proto.Letter, error] {
	return func(yield func(*proto.Letter, error) bool) {
		for _, rec := range p.Records {
			l, err := largeLetter(rec)
			if l == nil && err == nil {
				continue
			}
			if !yield(l, err) || err != nil {
				return
			}
		}
	}
}

// largeLetter returns the letter of the mail of a record, if its body is not in the letter; nil: it is,
// or the record is of no mail. The error is one of the packages box and proto.
func largeLetter(rec []byte) (*proto.Letter, error) {
	if t, err := box.TypeOf(rec); err != nil || t != box.TypeMove {
		return nil, nil //nolint:nilerr,nilnil // what a piece may not have is refused by box.ForCopy
	}
	m, err := box.MailOf(rec)
	if err != nil {
		return nil, err
	}
	l, err := proto.ParseLetter(m.Letter)
	if err != nil || l.Object.IsZero() {
		return nil, err
	}
	return &l, nil
}

// bodyOf returns the body of the mail of a record for a copy, which came from origin.
func bodyOf(rec []byte, origin proto.PeerID) arrivingBody {
	l, err := largeLetter(rec)
	if l == nil || err != nil {
		return arrivingBody{}
	}
	return arrivingBody{l.Object.Name, origin}
}

// HandoverOf returns how far a box here, or a copy of it, is on its way; the zero value: it is not.
func (b *Broker) HandoverOf(name string) box.Handover {
	boxes := *b.boxes.Load()
	if k, ok := boxes[box.CopyPrefix+name]; ok {
		return k.handover
	}
	return boxes[name].handover
}

// SetHandover changes how far a box is on its way; the zero value: it is served here.
func (b *Broker) SetHandover(ctx context.Context, name string, h box.Handover) error {
	_, err := b.change(ctx, func(box.Now) error {
		id, ok := b.state.Find(name)
		if !ok {
			return fmt.Errorf("%w: %s", box.ErrNotFound, name)
		}
		settings, _ := b.state.Settings(id)
		if settings.Handover == h {
			return nil
		}
		settings.Handover = h
		if err := settings.Check(); err != nil {
			return err
		}
		b.out.Records = append(b.out.Records, box.EncodeBox(id, &settings))
		return nil
	})
	return err
}

// Stand lets a box be still, so that it can be copied, and returns its settings. Before, readers
// may settle what they have for at most a second. The error is a [*RefusedError] if it cannot be
// moved now; then it may have to be let go: see [Broker.SetHandover].
func (b *Broker) Stand(ctx context.Context, name string, h box.Handover) (settings box.BoxSettings, err error) {
	h.Stage = box.Closing
	if err := b.SetHandover(ctx, name, h); err != nil {
		return settings, err
	}
	for end := b.cfg.Clock.Mono() + leaseWait; ; {
		leases := 0
		if err := b.call(ctx, func(box.Now) {
			id, _ := b.state.Find(name)
			leases = b.state.Leases(id)
		}); err != nil {
			return settings, err
		}
		if leases == 0 || b.cfg.Clock.Mono() >= end {
			break
		}
		select {
		case <-ctx.Done():
			return settings, ctx.Err()
		case <-time.After(leaseLook):
		}
	}
	h.Stage = box.Still
	if err := b.SetHandover(ctx, name, h); err != nil {
		return settings, err
	}
	// What was decided before it was still is applied with the next record.
	_, err = b.change(ctx, func(box.Now) error {
		id, _ := b.state.Find(name)
		settings, _ = b.state.Settings(id)
		if why := b.state.Unmovable(id); why != "" {
			return &RefusedError{proto.CodeBusy, why}
		}
		b.out.Records = append(b.out.Records, box.EncodeLimits(b.state.Limits()))
		return b.unwritten()
	})
	if err == nil {
		e := b.call(ctx, func(box.Now) { err = b.unwritten() })
		err = cmp.Or(err, e)
	}
	return settings, err
}

// unwritten is why no box can be still: what was settled has no space on the disk.
func (b *Broker) unwritten() error {
	if len(b.queued.refused) > 0 {
		return &RefusedError{proto.CodeFull, "the disk has no space for what readers have settled"}
	}
	return nil
}

// A Copying reads a box that is still, once.
type Copying struct {
	b    *Broker
	name string
	id   box.BoxID
	at   box.Cursor
	step func(*Copying) [][]byte // returns what comes next but for mails, on the goroutine of Run
	rest [][]byte
	done bool
}

// Copy begins to read a box that is still.
func (b *Broker) Copy(ctx context.Context, name string) (*Copying, error) {
	c := &Copying{b: b, name: name, step: (*Copying).head}
	found := false
	err := b.call(ctx, func(box.Now) { c.id, found = b.state.Find(name) })
	if err == nil && !found {
		err = box.ErrNotFound
	}
	return c, err
}

func (c *Copying) head() [][]byte {
	c.step = nil
	return c.b.state.CopyHead(c.id)
}

func (c *Copying) tail() [][]byte {
	c.step, c.done = nil, true
	parts := c.b.state.CopyTail(c.id)
	for notes := range c.b.chains.home.Parts(c.name) {
		parts = append(parts, box.EncodeChains(notes.Encode()))
	}
	return parts
}

// Next returns the next piece; one without records is the end. The error wraps
// [store.ErrNotFound] or [store.ErrCorrupt] if a mail that waits or is dead cannot be read.
func (c *Copying) Next(ctx context.Context) (p Piece, err error) {
	for len(c.rest) == 0 {
		if c.done {
			return p, nil
		}
		var mails []box.CopiedMail
		if err := c.b.call(ctx, func(box.Now) {
			if c.step != nil {
				c.rest = c.step(c)
			} else if mails, c.at = c.b.state.CopyMails(c.id, c.at, maxPieceLen/2, lookingMails); len(mails) == 0 {
				c.rest = c.tail()
			}
		}); err != nil {
			return p, err
		}
		if len(mails) > 0 { // none of them may be left: that is not the end
			if p, err = c.mails(ctx, mails); err != nil || len(p.Records) > 0 {
				return p, err
			}
		}
	}
	size := 0
	for len(c.rest) > 0 && len(p.Records) < maxPieceLen && (len(p.Records) == 0 || size+len(c.rest[0]) <= maxPiece) {
		if len(c.rest[0]) > box.MaxRecord {
			return p, &RefusedError{proto.CodeTooLarge, "the box has numbers of too many starts of one node"}
		}
		p.Records, size, c.rest = append(p.Records, c.rest[0]), size+len(c.rest[0]), c.rest[1:]
	}
	return p, nil
}

// mails returns the piece with mails.
func (c *Copying) mails(ctx context.Context, mails []box.CopiedMail) (p Piece, err error) {
	var kept []box.CopiedMail
	for _, m := range mails {
		rec, err := c.b.readMail(ctx, m.Kept, nil)
		if err == nil {
			rec, err = c.piece(&p, rec, m.Seq)
		}
		switch {
		case m.IsDone && errors.Is(err, store.ErrNotFound):
			continue // it is kept no more
		case m.IsDone && (errors.Is(err, store.ErrCorrupt) || errors.Is(err, box.ErrBadRecord)):
			c.b.cfg.Logger.Warn("a mail that is done cannot be read: it does not go to the new home of its box", "box", c.name, "seq", m.Seq, "why", err)
			continue
		case err != nil:
			return p, fmt.Errorf("mail %d of %s: %w", m.Seq, c.name, err)
		}
		if p.Records = append(p.Records, rec); m.IsDone {
			kept = append(kept, m)
		}
	}
	if len(kept) > 0 {
		p.Records = append(p.Records, box.EncodeKept(kept))
	}
	return p, nil
}

// piece returns the record of a mail for p.
func (c *Copying) piece(p *Piece, rec []byte, seq uint64) ([]byte, error) {
	rec, m, err := box.ForTransit(rec, seq, func(i uint32) uint32 {
		origin := c.b.peer(i)
		if i == 0 {
			origin = c.b.cfg.Self
		}
		for at, known := range p.Origins {
			if known == origin {
				return uint32(at) + 1
			}
		}
		p.Origins = append(p.Origins, origin)
		return uint32(len(p.Origins))
	})
	if err != nil {
		return nil, err
	}
	if l, err := proto.ParseLetter(m.Letter); err == nil && !l.Object.IsZero() {
		p.Bodies = append(p.Bodies, m.Letter)
	}
	return rec, nil
}

// BeginCopy begins the copy of a box of another node, with the settings that it has there. A copy
// of an earlier move is dropped. The error is a [*RefusedError] if there is a box with its name, or
// too many copies.
func (b *Broker) BeginCopy(ctx context.Context, settings box.BoxSettings, h box.Handover) error {
	name := settings.Name
	h.Stage = box.Copying
	settings.Name, settings.Handover, settings.Generation, settings.Closed = box.CopyPrefix+name, h, 0, false
	if err := settings.Check(); err != nil {
		return err
	}
	_, err := b.change(ctx, func(box.Now) error {
		if _, here := b.state.Find(name); here {
			return &RefusedError{proto.CodeDuplicate, "there is a box with this name"}
		}
		if err := b.roomForCopy(settings.Name, h.Peer); err != nil {
			return err
		}
		if id, ok := b.state.Find(settings.Name); ok {
			b.out.Records = append(b.out.Records, box.EncodeLeave(id))
		}
		b.chargeServed()
		b.originOf(h.Peer) // its share of the dedupe keys is charged
		b.out.Records = append(b.out.Records, box.EncodeBox(b.state.NewBox(), &settings))
		return nil
	})
	return err
}

// ErrDoubted is returned for a piece of a box with numbers of chains while the clock is doubted:
// nobody can say then which of their times a home may have noted.
var ErrDoubted = errors.New("mail: the clock of this node is doubted")

// AddToCopy adds a piece to the copy of a box, whose bodies are here. After another error than
// ErrDoubted the copy is of no use. It is a [*RefusedError], or wraps [box.ErrBadRecord] or [box.ErrNotFound].
func (b *Broker) AddToCopy(ctx context.Context, name string, id [16]byte, p *Piece) error {
	left, done := 1, make(chan struct{})
	var err error
	came := func(r box.Result, e error) {
		if e == nil && r.Code != proto.CodeOK {
			e = &RefusedError{r.Code, r.Detail}
		}
		if err == nil {
			err = e
		}
		if left--; left == 0 {
			close(done)
		}
	}
	if e := b.do(func(now box.Now) {
		at, _ := b.state.Find(box.CopyPrefix + name)
		s, _ := b.state.Settings(at)
		if s.Handover.ID != id || s.Handover.Stage != box.Copying {
			came(box.Result{}, fmt.Errorf("%w: %s", box.ErrNotFound, name))
			return
		}
		if now.Doubted && slices.ContainsFunc(p.Records, hasNotes) {
			came(box.Result{}, ErrDoubted)
			return
		}
		if e := b.chargeParts(at, s.Handover.Peer, p); e != nil {
			came(box.Result{}, e)
			return
		}
		for _, rec := range p.Records {
			if rec = b.credible(now, at, rec); rec == nil {
				continue
			}
			var origin proto.PeerID
			local, e := box.ForCopy(rec, at, func(i uint32) (uint32, error) {
				if i == 0 || int64(i) > int64(len(p.Origins)) || p.Origins[i-1].IsZero() {
					return 0, fmt.Errorf("%w: origin %d", box.ErrBadRecord, i)
				}
				if origin = b.copiedOrigin(p.Origins[i-1], s.Handover.Peer); origin.IsZero() {
					return 0, nil
				}
				return b.originOf(origin), nil
			})
			if e != nil {
				came(box.Result{}, e)
				return
			}
			left++
			body := bodyOf(local, origin)
			b.incoming.keepBody(body)
			b.queue(local, true, false, func(r box.Result, err error) {
				b.incoming.wrote(body)
				came(outcome(r, err))
			})
		}
		came(box.Result{}, nil)
	}); e != nil {
		return e
	}
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-b.ended:
		return ErrUnknown
	}
}

// EndCopy notes that a copy is whole.
func (b *Broker) EndCopy(ctx context.Context, name string, id [16]byte) error {
	h := b.HandoverOf(name)
	if h.ID != id || h.Stage != box.Copying {
		return fmt.Errorf("%w: %s", box.ErrNotFound, name)
	}
	h.Stage = box.Whole
	return b.SetHandover(ctx, box.CopyPrefix+name, h)
}

// Serve lets a copy that is whole be the box, whose home this node is since a generation.
func (b *Broker) Serve(ctx context.Context, name string, generation uint64) error {
	_, err := b.change(ctx, func(box.Now) error {
		id, ok := b.state.Find(box.CopyPrefix + name)
		if !ok {
			return fmt.Errorf("%w: %s", box.ErrNotFound, name)
		}
		s, _ := b.state.Settings(id)
		s.Name, s.Generation, s.Handover.Stage = name, generation, box.Came
		b.out.Records = append(b.out.Records, b.state.EncodeServe(id, &s))
		return nil
	})
	return err
}

// Served reports whether this node has served the box of a handover that came here. It remembers
// [box.MaxServed] of them, wherever their boxes are now.
func (b *Broker) Served(ctx context.Context, id [16]byte) (served bool, err error) {
	err = b.call(ctx, func(box.Now) { served = b.state.Served(id) })
	return served, err
}

// Leave removes a box that is at another home now. No mail of it ends.
func (b *Broker) Leave(ctx context.Context, name string) error {
	return b.endBox(ctx, name, func(id box.BoxID) []byte { return box.EncodeLeave(id) })
}

// DropCopy removes the copy of a box, if there is one.
func (b *Broker) DropCopy(ctx context.Context, name string) error {
	if err := b.Leave(ctx, box.CopyPrefix+name); !errors.Is(err, box.ErrNotFound) {
		return err
	}
	return nil
}
