package mail

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
)

// ErrNoBody means that the body of a mail is lost, here where it was sent.
var ErrNoBody = errors.New("mail: the body is lost")

// Objects calls yield with each body outside of its letter that a mail needs, also one from another
// node, or of the copy of a box, that is being written, and the node that the mail came from; zero
// is this one. Before [Broker.Run] too.
func (b *Broker) Objects(ctx context.Context, yield func(name [32]byte, origin proto.PeerID)) error {
	all := func() {
		for name, origin := range b.state.Objects() {
			yield(name, origin)
		}
		for o := range b.incoming.bodies {
			yield(o.name, o.origin)
		}
	}
	b.mu.Lock()
	if !b.running {
		defer b.mu.Unlock() // Run waits
		all()
		return nil
	}
	b.mu.Unlock()
	return b.call(ctx, func(box.Now) { all() })
}

// A MissingBody is the body of a mail in a spool that its home lacks. The mail is the next one of
// its chain.
type MissingBody struct {
	Box    string
	Letter []byte

	missingBody
	number proto.Seq
}

// A missingBody says where there is one.
type missingBody struct {
	target *target
	class  proto.Class
}

// lacks notes that the home lacks the body of the first mail of a chain, which waits for it.
func (l *Lane) lacks(now box.Now, t *target, class proto.Class, detail string) {
	l.b.hold(now, t, class, proto.CodeNeedBody, detail, maxBackoff)
	c := &t.chains[class.Index()]
	if c.missing || c.sending {
		return
	}
	c.missing = true
	l.missing = append(l.missing, missingBody{t, class})
	signal(l.bodies)
}

// NextBody waits until the home lacks the body of a mail, and returns it. [Lane.SentBody] follows.
// The errors are those of [Lane.Next].
func (l *Lane) NextBody(ctx context.Context) (*MissingBody, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.b.ended:
			return nil, ErrStopped
		case <-l.bodies:
		}
		whole := context.WithoutCancel(ctx) // one that was taken is returned
		var x *MissingBody
		var mail box.Kept
		if err := l.b.call(whole, func(box.Now) { x, mail = l.takeBody() }); err != nil {
			return nil, err
		}
		if x == nil {
			continue
		}
		rec, err := l.b.readMail(whole, mail, nil)
		var m box.Mail
		if err == nil {
			m, err = box.MailOf(rec)
		}
		if x.Letter = m.Letter; err == nil {
			return x, nil
		}
		if err := l.SentBody(whole, x, err); err != nil {
			return nil, err
		}
	}
}

// takeBody takes the next body that the home lacks, and the record of its mail.
func (l *Lane) takeBody() (*MissingBody, box.Kept) {
	for len(l.missing) > 0 {
		x := l.missing[0]
		l.missing = l.missing[1:]
		c := &x.target.chains[x.class.Index()]
		c.missing = false
		n, ref, ok := l.b.spools.origin.Front(x.target.box, x.class)
		mail, there := l.b.state.Mail(x.target.id, ref)
		if !ok || !there || l.b.spools.targets[x.target.box] != x.target || x.target.home != l.home {
			continue
		}
		c.sending = true
		if len(l.missing) > 0 {
			signal(l.bodies)
		}
		return &MissingBody{Box: x.target.box, missingBody: x, number: n}, mail
	}
	return nil, box.Kept{}
}

// SentBody says what became of a body: nil if it is durable at the home, which is sent the mail
// again. With a [*RefusedError] the mail waits like one that the home refuses. With [ErrNoBody] it
// ends as a dead letter. With any other error it is tried again later.
func (l *Lane) SentBody(ctx context.Context, x *MissingBody, why error) error {
	return l.b.call(ctx, func(now box.Now) {
		t, c := x.target, &x.target.chains[x.class.Index()]
		c.sending = false
		n, _, ok := l.b.spools.origin.Front(t.box, x.class)
		if !ok || n != x.number || l.b.spools.targets[t.box] != t {
			return
		}
		refused, is := errors.AsType[*RefusedError](why)
		switch {
		case why == nil:
			l.b.resume(t, x.class)
		case errors.Is(why, ErrNoBody):
			l.b.lose(now, x, why)
		case is:
			l.b.hold(now, t, x.class, refused.Code, refused.Detail, 0)
		default:
			l.b.hold(now, t, x.class, proto.CodeNeedBody, why.Error(), 0)
		}
	})
}

// lose ends a mail whose body is lost. Its home does not have it, by its own word.
func (b *Broker) lose(now box.Now, x *MissingBody, why error) {
	e, ok := b.spools.origin.Lose(x.Box, x.class, x.number)
	if !ok {
		return
	}
	b.cfg.Logger.Error("the body of a mail that was not delivered is lost", "box", x.Box, "why", why)
	b.endSpooled(x.target, []chain.Expiry{e}, box.SpoolEnd{State: box.Dead, Cause: box.CauseRefused, At: now.Wall, Reason: short(fmt.Sprint(why))}, nil)
	b.resume(x.target, x.class)
}
