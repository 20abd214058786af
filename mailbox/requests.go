package mailbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// requests sends requests and waits for their replies. It keeps nothing: those are in reply
// boxes.
type requests struct {
	self     proto.PeerID
	log      *slog.Logger
	ledger   *ledgerOpener
	places   *places
	rules    *rules
	composer *composer
	mailer   *mailer
	views    *views
	replies  *replies
}

// newReplyBox is [Boxes.NewReplyBox].
func (q *requests) newReplyBox(ctx context.Context, r wire.NewReplyBox) (wire.ReplyBox, error) {
	p := q.replies.newPlace()
	_, err := q.replies.make(ctx, p, notes{Allow: r.ReplyFrom})
	return wire.ReplyBox{Box: p.text}, err
}

// request is [Boxes.Request].
func (q *requests) request(ctx context.Context, r wire.MailRequest) (wire.MailReply, error) {
	if err := checkRequest(r.ReplyTo != "" || r.BounceTo != "", r.Notify != "", time.Duration(r.Wait)); err != nil {
		return wire.MailReply{}, err
	}
	if r.Stream != nil {
		return wire.MailReply{}, invalid("the body of a request is inline: at most %d bytes", proto.MaxInlineBody)
	}
	raw, to, err := q.composer.encode(&r.Mail, proto.LetterObject{})
	if err != nil {
		return wire.MailReply{}, err
	}
	sent, err := q.ask(ctx, raw, to, r.ReplyFrom)
	if err != nil {
		return wire.MailReply{}, err
	}
	out, err := q.answer(ctx, sent, time.Duration(r.Wait))
	return out, unlessStopping(err)
}

// unlessStopping returns the error of a wait for the reply to a request that was sent. A node that
// stops ends the wait: the reply may be asked for when it has started.
func unlessStopping(err error) error {
	if errors.Is(err, wire.ErrDraining) {
		return nil
	}
	return err
}

// requestLetter is [Boxes.RequestLetter].
func (q *requests) requestLetter(ctx context.Context, x Letter, replyFrom []string, wait time.Duration) (wire.SentMail, mail.Delivery, error) {
	to, err := q.places.findTarget(string(x.To))
	var l proto.Letter
	if err == nil {
		l, x.Letter, err = q.composer.checkLetter(x.Letter, to)
	}
	if err == nil {
		err = checkRequest(len(l.ReplyTo)+len(l.BounceTo) > 0, l.Flags&proto.LetterTellEnd != 0, wait)
	}
	if err != nil {
		return wire.SentMail{}, mail.Delivery{}, err
	}
	sent, err := q.ask(ctx, x.Letter, to, replyFrom)
	if err != nil {
		return sent, mail.Delivery{}, err
	}
	_, d, err := q.await(ctx, sent.ID, wait)
	if err != nil || d.Letter == nil {
		return sent, d, unlessStopping(err)
	}
	if l, err = proto.ParseLetter(d.Letter); err == nil && string(l.Type) == mail.TypeBounce {
		err = wire.BouncedError(sent.ID, l.Body)
	}
	return sent, d, err
}

// ask makes the box for the reply to a request and sends its letter.
func (q *requests) ask(ctx context.Context, raw []byte, to place, replyFrom []string) (sent wire.SentMail, err error) {
	l, err := proto.ParseLetter(raw)
	if err != nil {
		return sent, err
	}
	n := notes{Allow: replyFrom, Request: l.ID.String()}
	if len(n.Allow) > 0 && to.home != q.self {
		n.Allow = append(slices.Clone(n.Allow), "peer:"+to.home.String())
	}
	reply := q.replies.newPlace()
	name, err := q.replies.make(ctx, reply, n)
	if err != nil {
		return sent, err
	}
	if raw, err = requestLetter(l, name); err == nil {
		sent, err = q.mailer.sendOne(ctx, raw, to, q.composer.mayRelax(l.Flags&proto.LetterRelaxed != 0))
	}
	if name == reply.name && (err != nil && !errors.Is(err, store.ErrUnknown) || sent.Known) {
		if err := q.replies.drop(ctx, name); err != nil {
			q.log.Warn("a box for a reply was not removed: it is when nobody has read it for an hour", "why", err)
		}
	}
	return sent, err
}

func checkRequest(named, tells bool, wait time.Duration) error {
	switch {
	case tells:
		return invalid("notify: the reply to a request tells that it is done")
	case named:
		return invalid("reply_to and bounce_to: the reply to a request, or its bounce, comes to a box of its own; send a mail to name another one")
	case wait < 0 || wait > maxWait:
		return invalid("wait %s: must be from 0 to 10 minutes", wire.Duration(wait))
	}
	return nil
}

// requestLetter encodes the letter of a request with the box for its reply, which repeats its
// correlation: that is its id unless it has one.
func requestLetter(l proto.Letter, replyTo string) ([]byte, error) {
	l.ReplyTo = []byte(replyTo)
	if len(l.Correlation) == 0 {
		l.Correlation = []byte(l.ID.String())
	}
	raw, err := proto.AppendLetter(nil, &l)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return proto.TraceLetter(raw, 0), nil
}

// reply is [Boxes.Reply].
func (q *requests) reply(ctx context.Context, id string, wait time.Duration) (wire.MailReply, error) {
	if wait < 0 || wait > maxWait {
		return wire.MailReply{}, invalid("wait %s: must be from 0 to 10 minutes", wire.Duration(wait))
	}
	return q.answer(ctx, wire.SentMail{ID: strings.ToLower(id)}, wait)
}

func (q *requests) answer(ctx context.Context, sent wire.SentMail, wait time.Duration) (wire.MailReply, error) {
	out := wire.MailReply{SentMail: sent}
	p, d, err := q.await(ctx, sent.ID, wait)
	if err != nil || d.Letter == nil {
		return out, err
	}
	m, err := q.views.received(p, d.Handle.Seq, d.From, d.Letter)
	if err != nil {
		return out, err
	}
	if m.Type == mail.TypeBounce {
		return out, wire.BouncedError(sent.ID, m.Body)
	}
	out.Reply = &m
	return out, nil
}

// await returns the reply to a request as it is kept, or its bounce; without a letter: none
// has come in time.
func (q *requests) await(ctx context.Context, id string, wait time.Duration) (p place, d mail.Delivery, err error) {
	p, k, err := q.requested(ctx, id)
	if err != nil {
		return p, d, err
	}
	q.replies.noteRead(p.name)
	if d, again, err := q.replies.again(ctx, k, p); err != nil || again {
		return p, d, failure(p, "", err)
	}
	waiting, stop := context.WithTimeout(ctx, wait)
	defer stop()
	d, err = q.take(ctx, waiting, k, p)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil
	}
	return p, d, failure(p, "", err)
}

// take takes the reply from its box when it comes. Of several who wait one does, then the
// others are given it again.
func (q *requests) take(ctx, waiting context.Context, k *mail.Broker, p place) (d mail.Delivery, err error) {
	turn := q.replies.turn(p.name)
	select {
	case turn <- struct{}{}:
	default:
		select {
		case turn <- struct{}{}:
		case <-waiting.Done():
			return d, waiting.Err()
		}
	}
	defer func() { <-turn }()
	if d, again, err := q.replies.again(ctx, k, p); err != nil || again {
		return d, err
	}
	s, err := k.Read(ctx, mail.Reading{Box: p.name, Reader: "requester", Credit: 1})
	if err != nil {
		return d, err
	}
	defer func() { _ = s.Close(context.WithoutCancel(ctx), false) }() // a broker that has ended does not mind
	if err := k.View(ctx, func(*box.State) {}); err != nil {          // what waits was delivered before
		return d, err
	}
	given, err := s.Next(waiting, 1)
	if err != nil || len(given) == 0 { // none: it ended, or was lost with its segment, while it was read
		return d, err
	}
	q.replies.noteGiven(ctx, k, p, given[0])
	return given[0], nil
}

// requested returns the reply box of a request.
func (q *requests) requested(ctx context.Context, id string) (place, *mail.Broker, error) {
	k := q.ledger.broker()
	if k != nil {
		if _, err := q.rules.known(ctx, k); err != nil {
			return place{}, k, failure(place{}, "", err)
		}
		if name, ok := q.replies.boxOf(id); ok {
			p, err := q.places.find(name)
			return p, k, err
		}
	}
	return place{}, k, fmt.Errorf("%w: nobody waits for a reply to mail %.64q here: it was no request, or its reply was given, or nobody asked for it for an hour", wire.ErrNotFound, id)
}
