package mail

import (
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
)

// AckAndSend acknowledges a delivery and puts the mail that came of it into its box, or into the
// spool of a box on another node: one record, so that both are on disk or neither is. If the mail
// is refused for good, the delivery ends as a dead letter; if for now, it is delivered again after
// a time and nothing is spent. [proto.CodeStale] means that the delivery does not count, and nothing
// was sent; a duplicate that it was acknowledged before. With ErrUnknown both or neither happened.
func (b *Broker) AckAndSend(ctx context.Context, name, sub string, h box.Handle, to Outgoing, again time.Duration) (Sent, error) {
	p := &passing{name: name, sub: sub, handle: h, to: to.Box, again: again, mail: box.Mail{At: b.cfg.Clock.Now().UnixMilli(), Letter: to.Letter}, done: make(chan struct{})}
	if p.away = to.Home != b.cfg.Self; p.away {
		f, err := b.forwardable(ctx, []Outgoing{to}, false)
		if err != nil {
			return Sent{}, err
		}
		p.facts, p.sent = f.facts[0], f.sent[0]
	}
	if err := b.do(func(now box.Now) { b.pass(now, p) }); err != nil {
		return Sent{}, err
	}
	select {
	case <-p.done:
		return p.sent, p.err
	case <-ctx.Done():
		return Sent{}, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-b.ended:
		return Sent{}, ErrUnknown
	}
}

// A passing is one call of AckAndSend.
type passing struct {
	name, sub string
	handle    box.Handle
	to        string
	again     time.Duration // wait after a refusal for now
	away      bool          // to a box on another node
	facts     chain.Mail
	mail      box.Mail

	sent Sent // refused before: not CodeOK
	err  error
	done chan struct{}
}

// pass queues the record of a passing.
func (b *Broker) pass(now box.Now, p *passing) {
	id, sub, err := b.find(p.name, p.sub)
	if err != nil {
		p.err = err
		close(p.done)
		return
	}
	b.propose(nil)
	code, counts := b.state.Forward(id, sub, p.handle, &b.out)
	if !counts {
		p.sent = Sent{Code: code, Duplicate: code == proto.CodeOK}
		close(p.done)
		return
	}
	answer := func(now box.Now, r Sent) {
		if p.sent = r; r.Code != proto.CodeOK && r.Code != proto.CodeStale {
			b.state.Unforward(now, id, sub, p.handle, r.ForGood, p.again, "forward to "+p.to+": "+r.Code.Name()+": "+r.Detail, &b.out)
		}
		close(p.done)
	}
	p.mail.Cause = b.state.OriginOf(id, p.handle.Seq)
	t, refused := b.address(p)
	if refused.Code != proto.CodeOK {
		answer(now, refused)
		return
	}
	b.queue(box.EncodeForward(id, sub, p.handle.Seq, box.AppendMail(nil, &p.mail)), true, false, func(r box.Result, err error) {
		if t != nil {
			b.stored(t, p.mail.Chain, p.mail.Number, r, err)
		}
		if r, p.err = outcome(r, err); p.err != nil {
			close(p.done)
			return
		}
		if r.Code == proto.CodeOK {
			b.handled(b.now(), p.name, id, sub, p.handle.Seq)
		}
		b.noteSent(p.mail.Letter, r)
		answer(b.now(), Sent{r.Code, r.Detail, r.ForGood, r.Duplicate, r.ID, r.Seq, t != nil})
	})
}

// address says where the mail of a passing goes, and gives it a number if that is a spool.
func (b *Broker) address(p *passing) (t *target, refused Sent) {
	if p.sent.Code != proto.CodeOK {
		return nil, p.sent
	}
	if !p.away {
		boxes := *b.boxes.Load()
		to, ok := boxes[p.to]
		if !ok || to.spool {
			return nil, absent(boxes, p.to)
		}
		p.mail.Box = to.id
		return b.lineUp(&p.mail), Sent{}
	}
	if t = b.spools.targets[p.to]; t == nil {
		return nil, Sent{Code: proto.CodeBusy, Detail: "its spool was removed meanwhile"}
	}
	b.number(t, &p.mail, p.facts)
	return t, Sent{}
}
