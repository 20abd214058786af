package mail

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
)

// A Lane sends the mail that waits for the boxes of one home. One goroutine calls
// [Lane.Next], and sends the bundles in that order.
//
//	Next ─▶ bundle ─▶ the home ─▶ answer ─▶ Answer    the mails end
//	 ▲                              └─▶ stop: the chain waits, or goes to another home
//	 └── Reset: all that has no answer is sent again
type Lane struct {
	b    *Broker
	home proto.PeerID
	wake chan struct{} // something may be sent

	bodies chan struct{} // something was added to missing

	// Of the goroutine of Run.
	asked   map[uint64][]askedMail // of the bundles without an answer, by number
	missing []missingBody
	ready   [fair.Classes][]*target // candidates, some of them stale
	picker  fair.Picker
}

// Lane returns the lane of a home.
func (b *Broker) Lane(ctx context.Context, home proto.PeerID) (l *Lane, err error) {
	err = b.call(ctx, func(box.Now) { l = b.lane(home) })
	return l, err
}

func (b *Broker) lane(home proto.PeerID) *Lane {
	l := b.spools.lanes[home]
	if l == nil {
		l = &Lane{b: b, home: home, wake: make(chan struct{}, 1), bodies: make(chan struct{}, 1)}
		b.spools.lanes[home] = l
	}
	return l
}

// offer makes a chain a candidate of its lane if something of it may be sent.
func (b *Broker) offer(t *target, class proto.Class) {
	c := &t.chains[class.Index()]
	if c.offered || b.spools.targets[t.box] != t || !b.spools.origin.Ready(t.box, class) {
		return
	}
	c.offered = true
	l := b.lane(t.home)
	l.ready[class.Index()] = append(l.ready[class.Index()], t)
	signal(l.wake)
}

// Next waits until something may be sent to the home and returns it: mails of one chain, with
// letters of at most [chain.MaxBundleBytes], or one larger letter. Package fair chooses among the
// classes, and the boxes of a class take turns. The errors are those of ctx, and those of a broker
// that has ended: [ErrStopped], [ErrUnknown].
func (l *Lane) Next(ctx context.Context) (*proto.Bundle, error) {
	return l.next(ctx, chain.MaxBundleBytes)
}

// next is Next for letters of at most room bytes.
func (l *Lane) next(ctx context.Context, room int) (*proto.Bundle, error) {
	whole := context.WithoutCancel(ctx) // a bundle that was taken is returned
	for {
		var s *shipment
		if err := l.b.call(whole, func(box.Now) { s = l.take(room) }); err != nil {
			return nil, err
		}
		if s != nil {
			m, err := l.fetch(whole, s)
			if err == nil && len(s.asked) > 0 {
				if err := l.b.call(whole, func(box.Now) { l.ask(s) }); err != nil {
					return nil, err
				}
			}
			if err == nil {
				return m, nil
			}
			if err := l.b.call(whole, func(now box.Now) { l.unread(now, s, err) }); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.b.ended:
			return nil, ErrStopped
		case <-l.wake:
		}
	}
}

// A shipment is a bundle whose letters have not been read yet.
type shipment struct {
	chain.Bundle
	mails []box.Kept
	asked []askedMail
	read  int // how many of them were read
}

// take takes the next bundle; nil: there is none.
func (l *Lane) take(room int) *shipment {
	var waits [fair.Classes]bool
	for c := range waits {
		waits[c] = l.top(c)
	}
	c := l.picker.Next(waits)
	if c < 0 {
		return nil
	}
	t := l.ready[c][0]
	l.ready[c] = l.ready[c][1:]
	t.chains[c].offered = false
	l.picker.Took(c, waits)
	s := new(shipment)
	s.Bundle, _ = l.b.spools.origin.Next(t.box, classOf(c), room)
	l.b.offer(t, classOf(c))
	for _, seq := range s.Refs {
		k, _ := l.b.state.Mail(t.id, seq)
		s.mails = append(s.mails, k)
	}
	return s
}

// top removes from the front of the candidates of a class what may not be sent, and reports
// whether one is left.
func (l *Lane) top(c int) bool {
	for ; len(l.ready[c]) > 0; l.ready[c] = l.ready[c][1:] {
		t := l.ready[c][0]
		if l.b.spools.targets[t.box] != t || t.home != l.home {
			continue
		}
		if l.b.spools.origin.Ready(t.box, classOf(c)) {
			return true
		}
		t.chains[c].offered = false
	}
	return false
}

// fetch reads the letters of a bundle.
func (l *Lane) fetch(ctx context.Context, s *shipment) (*proto.Bundle, error) {
	m := &proto.Bundle{
		Number: s.Number, Box: s.Box, Generation: s.Generation, Chain: s.Class,
		PrevBoot: s.Prev.Boot, PrevNumber: s.Prev.Counter, Letters: make([]byte, 0, s.Size),
	}
	for _, r := range s.Runs {
		m.Runs = append(m.Runs, &proto.Run{Boot: r.Boot, First: r.First, Count: r.Count})
	}
	var rec []byte
	for i, k := range s.mails {
		var err error
		if rec, err = l.b.readMail(ctx, k, rec[:0]); err != nil {
			return nil, err
		}
		mail, err := box.MailOf(rec)
		if err != nil {
			return nil, err
		}
		p, err := proto.ParseLetter(mail.Letter)
		if err != nil {
			return nil, err
		}
		if p.Flags&proto.LetterReceipt != 0 {
			m.Receipt = true
			s.asked = append(s.asked, askedMail{i, k.Seq, mail.Number, p.ID, sha256.Sum256(mail.Letter)})
		}
		m.Letters = append(m.Letters, mail.Letter...)
		s.read++
	}
	return m, nil
}

// unread stops a chain of which a mail cannot be read. If its record is damaged, it ends.
func (l *Lane) unread(now box.Now, s *shipment, why error) {
	l.b.cfg.Logger.Error("mail in a spool cannot be read", "box", s.Box, "why", why)
	out, err := l.b.spools.origin.Answer(l.home, chain.Answer{Number: s.Number, Code: proto.CodeInternal})
	if t := l.b.spools.targets[s.Box]; err == nil && out.Box != "" && t != nil {
		l.b.hold(now, t, s.Class, proto.CodeInternal, why.Error(), 0)
	}
	if !IsDamage(why) {
		return
	}
	if x, ok := l.b.spools.origin.Break(s.Box, s.Class, s.mails[s.read].Seq); ok {
		l.b.endOver(now, []chain.Expiry{x}, damaged)
		if t := l.b.spools.targets[s.Box]; t != nil {
			t.chains[s.Class.Index()].failures = 0 // that was the cause, and the next one may be damaged too
		}
	}
}

// Answer takes the answer of the home to a bundle into account. One to a bundle that is not
// expected any more changes nothing, and neither does one that no home gives: that is an error,
// which wraps [chain.ErrAnswer] or [proto.ErrBadMail].
func (l *Lane) Answer(ctx context.Context, m *proto.Bundled) error {
	if err := m.Check(); err != nil {
		return fmt.Errorf("mail: answer of %s: %w", l.home, err)
	}
	var err error
	if e := l.b.call(ctx, func(now box.Now) { err = l.answer(now, m) }); e != nil {
		return e
	}
	return err
}

func (l *Lane) answer(now box.Now, m *proto.Bundled) error {
	b, a := l.b, chain.Answer{Number: m.GetNumber(), Code: m.GetCode(), UpTo: m.UpTo()}
	for _, s := range m.GetSkipped() {
		a.Skipped = append(a.Skipped, chain.Skip{N: proto.Seq{Boot: s.GetBoot(), Counter: s.GetNumber()}, Code: s.GetCode(), Detail: s.GetDetail()})
	}
	out, err := b.spools.origin.Answer(l.home, a)
	t := b.spools.targets[out.Box]
	if err != nil || t == nil {
		return err
	}
	offense := l.prove(t, out.Class, m)
	b.propose(nil)
	for _, rec := range t.doneRecords(out.Accepted) {
		b.queue(rec, false, true, nil) // if it is lost, they are sent again
	}
	b.refused(now, t, out.Refused)
	c := &t.chains[out.Class.Index()]
	if a.UpTo != (proto.Seq{}) {
		c.failures, c.stop = 0, Stop{}
	}
	if out.Stopped == proto.CodeOK {
		b.offer(t, out.Class)
		return offense
	}
	if out.Stopped == proto.CodeNeedBody {
		l.lacks(now, t, out.Class, m.GetDetail())
		return offense
	}
	b.hold(now, t, out.Class, out.Stopped, m.GetDetail(), time.Duration(min(m.GetRetryAfterMs(), uint64(maxBackoff.Milliseconds())))*time.Millisecond)
	if out.Stopped == proto.CodeMoved {
		b.moved(t, proto.PeerID(m.GetHome()), m.GetGeneration())
	}
	return offense
}

// refused ends mails that their home refused for good.
func (b *Broker) refused(now box.Now, t *target, list []chain.Refusal) {
	for len(list) > 0 {
		first, seqs := list[0], []uint64(nil)
		for len(list) > 0 && len(seqs) < box.MaxSeqs && list[0].Code == first.Code && list[0].Detail == first.Detail {
			seqs, list = append(seqs, list[0].Ref), list[1:]
		}
		e := box.SpoolEnd{State: box.Dead, Cause: box.CauseRefused, At: now.Wall, Reason: first.Code.Name()}
		if first.Code == proto.CodeExpired {
			e.State = box.Expired
		}
		if first.Detail != "" {
			e.Reason += ": " + first.Detail
		}
		b.queue(box.EncodeSpoolEnd(t.id, e, seqs), false, false, nil)
	}
}

// moved gives a spool to another home, when all that has ended before is on disk. What the mesh
// knows decides; if nobody knows it, a higher generation counts.
func (b *Broker) moved(t *target, home proto.PeerID, generation uint64) {
	s, ok := b.state.Settings(t.id)
	news := t.movesTo(home, generation)
	if b.cfg.Moved != nil {
		news = t.differs(home, generation) && b.cfg.Moved(t.box, home, generation)
	}
	if !ok || generation > proto.MaxGeneration || !news {
		return
	}
	s.Home, s.Generation = home, generation
	b.queue(box.EncodeBox(t.id, &s), false, false, func(box.Result, error) { b.publish() })
}

// Reset makes all that has no answer ready to be sent again: the connection to the home was
// lost, or no answer came for too long. Answers to earlier bundles are ignored from now on.
func (l *Lane) Reset(ctx context.Context) error {
	return l.b.call(ctx, func(box.Now) { l.again(l.b.spools.origin.Reset) })
}

// Unanswered reports whether an answer to a bundle with at most this number is expected.
func (l *Lane) Unanswered(ctx context.Context, number uint64) (waits bool, err error) {
	err = l.b.call(ctx, func(box.Now) { waits = l.b.spools.origin.Unanswered(l.home, number) })
	return waits, err
}

// Resume lets all chains go on that the home stopped: it has space again.
func (l *Lane) Resume(ctx context.Context) error {
	return l.b.call(ctx, func(box.Now) { l.again(func(string) {}) })
}

// RetryNow lets the chains go on that their home stopped with code.
func (b *Broker) RetryNow(ctx context.Context, home proto.PeerID, code proto.Code) error {
	return b.call(ctx, func(box.Now) {
		for t := range b.spools.all() {
			for c := range t.chains {
				if t.home == home && t.chains[c].until > 0 && t.chains[c].stop.Code == code {
					b.resume(t, classOf(c))
				}
			}
		}
	})
}

func (l *Lane) again(reset func(box string)) {
	for t := range l.b.spools.all() {
		if t.home != l.home {
			continue
		}
		reset(t.box)
		for c := range t.chains {
			l.b.resume(t, classOf(c))
		}
	}
}
